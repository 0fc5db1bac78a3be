"""Run `callslip serve` with other limits: `serve_with_limits.py JSON OPTION...`. Unknown limits are left out."""

import json
import sys
from functools import partial

from callslip import settings

limits = json.loads(sys.argv[1])
settings.Limits = partial(  # type: ignore[misc,assignment]
    settings.Limits, **{name: limits[name] for name in settings.Limits.__struct_fields__ if name in limits}
)

from callslip.cli import main  # noqa: E402

sys.argv = ["callslip", "serve", *sys.argv[2:]]
main()
