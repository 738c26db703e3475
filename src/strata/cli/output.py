"""JSON on standard output."""

import json
import sys
from typing import Any


def print_json(value: Any, indent: int | None = None) -> None:
    """One JSON value; characters that the stream's encoding lacks are written as JSON escapes."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not utf8, indent=indent))
