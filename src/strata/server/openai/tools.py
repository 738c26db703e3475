"""Tools and tool_choice as OpenAI's chat and responses send them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from strata.errors import UsageError
from strata.server.body import MAX_TOOLS, Body, Name, Object
from strata.server.conversation import ToolChoice


class Function(Body):
    """A function that may be called."""

    name: Name
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool of the one kind that is served."""

    type: Literal["function"]
    function: Function


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS)]
Choice = Literal["none", "auto", "required"]


def tool_choice(choice: str | dict[str, Any] | None, parallel: bool | None) -> ToolChoice:
    """The choice in our words; UsageError for a shape that is not known."""
    many = parallel is not False
    if choice is None or choice == "auto":
        return ToolChoice(parallel=many)
    if choice == "none":
        return ToolChoice("none")
    if choice == "required":
        return ToolChoice("required", parallel=many)
    if isinstance(choice, dict):
        if choice.get("type") == "function" and (name := _name(choice)):
            return ToolChoice("required", (name,), parallel=False)
        if choice.get("type") == "allowed_tools":
            return _allowed(choice, many)
    raise UsageError(
        'tool_choice must be "none", "auto", "required", {"type": "function", ...} or {"type": "allowed_tools", ...}'
    )


def _allowed(choice: dict[str, Any], many: bool) -> ToolChoice:
    stated = choice.get("allowed_tools")
    stated = stated if isinstance(stated, dict) else choice
    mode, tools = stated.get("mode"), stated.get("tools")
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise UsageError("tool_choice: allowed_tools needs a mode (auto or required) and a list of tools")
    names = tuple(_name(tool) if isinstance(tool, dict) else "" for tool in tools)
    return ToolChoice(mode, names, many)


def _name(tool: dict[str, Any]) -> str:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else ""
