"""Anthropic's conversations in our words."""

from collections.abc import Iterator, Mapping
from typing import Any

from strata.errors import UsageError
from strata.server.anthropic.schema import Choice, CountRequest, Tool, Turn
from strata.server.conversation import Conversation, ToolChoice
from strata.server.openai.formats import Format


def conversation(body: CountRequest) -> Conversation:
    """UsageError names what cannot be served."""
    wanted, effort = _output(body.output_config or {})
    thinking = body.thinking
    return Conversation(
        messages=_messages(body),
        tools=[_tool(tool) for tool in body.tools or ()],
        tool_choice=_choice(body.tool_choice),
        grammar=wanted.grammar,
        schema=wanted.schema,
        effort=effort,
        thinking=None if thinking is None else thinking.type != "disabled",
        reasoning_budget=None if thinking is None else thinking.budget_tokens,
    )


def _output(config: Mapping[str, Any]) -> tuple[Format, str | None]:
    stated, effort = config.get("format"), config.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise UsageError("output_config.effort must be text")
    if stated is None:
        return Format(), effort
    if not isinstance(stated, Mapping) or stated.get("type") != "json_schema":
        raise UsageError("output_config.format must be of type json_schema")
    return Format.of_schema(stated.get("schema")), effort


def _messages(body: CountRequest) -> list[dict[str, Any]]:
    messages = []
    if body.system:
        messages.append({"role": "system", "content": _plain(body.system, "system")})
    for turn in body.messages:
        messages += _turn(turn)
    return messages


def _turn(turn: Turn) -> Iterator[dict[str, Any]]:
    """One message, with results of calls as messages of their own before the text that follows them."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
        return
    if turn.role == "assistant":
        yield _assistant(turn.content)
        return
    texts: list[str] = []
    for block in turn.content:
        if block.get("type") == "tool_result":
            if texts:
                yield {"role": turn.role, "content": "\n".join(texts)}
                texts = []
            yield _result(block)
        else:
            texts.append(_block_text(block, turn.role))
    if texts or not turn.content:
        yield {"role": turn.role, "content": "\n".join(texts)}


def _assistant(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(_string(block, "thinking"))
        elif kind == "tool_use":
            calls.append(_call(block))
        elif kind != "redacted_thinking":  # nobody but its maker can read it
            texts.append(_block_text(block, "assistant"))
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = block.get("input", {})
    if not isinstance(arguments, Mapping):
        raise UsageError("tool_use: input must be an object")
    function = {"name": _string(block, "name"), "arguments": dict(arguments)}
    return {"id": _string(block, "id"), "type": "function", "function": function}


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content") or ""
    text = _plain(content, "tool_result")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": _string(block, "tool_use_id"), "content": text}


def _plain(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise UsageError(f"{where}: content must be text or a list of blocks")
    return "\n".join(_block_text(block, where) for block in content)


def _block_text(block: Mapping[str, Any], where: str) -> str:
    kind = block.get("type")
    if kind == "text":
        return _string(block, "text")
    if kind == "image":
        raise UsageError(f"{where}: image blocks are not supported: this server reads text")
    if kind == "document":
        source = block.get("source")
        if isinstance(source, Mapping) and source.get("type") == "text":
            return _string(source, "data")
        raise UsageError(f"{where}: document blocks are supported with a source of type text alone")
    raise UsageError(f"{where}: content block of type {kind!r} is not supported")


def _string(block: Mapping[str, Any], key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise UsageError(f"{block.get('type', 'block')}: {key} must be text")
    return value


def _tool(tool: Tool) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        raise UsageError(f"tool {tool.name!r} of type {tool.type!r} is not supported; custom tools are")
    if tool.input_schema is None:
        raise UsageError(f"tool {tool.name!r} has no input_schema")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description:
        function["description"] = tool.description
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _choice(choice: Choice | None) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    if choice.type == "tool":
        if not choice.name:
            raise UsageError("tool_choice: a choice of type tool needs a name")
        return ToolChoice("required", (choice.name,), parallel=False)
    if choice.type == "any":
        return ToolChoice("required", parallel=parallel)
    return ToolChoice("none" if choice.type == "none" else "auto", parallel=parallel)
