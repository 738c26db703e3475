"""How a model writes tool calls, told from its template."""

import re
from enum import Enum

_JSON_CALL = re.compile(r'\{\s*\\?"name\\?"\s*:')


class ToolStyle(Enum):
    """The text between `<tool_call>` and `</tool_call>`; NONE where the template writes no such calls."""

    XML = "xml"  # <function=NAME> <parameter=KEY> VALUE </parameter> </function>
    JSON = "json"  # {"name": NAME, "arguments": {...}}
    NONE = "none"


def detect_style(source: str) -> ToolStyle:
    """Style of a template, which spells it out to render the calls of earlier turns."""
    if "<tool_call>" not in source:
        return ToolStyle.NONE
    if "<function=" in source and "<parameter=" in source:
        return ToolStyle.XML
    return ToolStyle.JSON if _JSON_CALL.search(source) else ToolStyle.NONE
