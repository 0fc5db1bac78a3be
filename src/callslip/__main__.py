"""`python -m callslip` is `callslip`."""

from __future__ import annotations

from callslip.cli import main

if __name__ == "__main__":
    main()
