"""Run `callslip serve` with other settings: `serve_with_settings.py JSON OPTION...`."""

import json
import sys
from functools import partial

from callslip.cli import main
from callslip.cli.commands import serve

serve.Settings = partial(serve.Settings, **json.loads(sys.argv[1]))  # type: ignore[misc,assignment]
sys.argv = ["callslip", "serve", *sys.argv[2:]]
main()
