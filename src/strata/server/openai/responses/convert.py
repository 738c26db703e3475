"""Items of a response's input as messages, and a response's output as items."""

from collections.abc import Mapping, Sequence
from typing import Any

from strata.errors import UsageError
from strata.server.conversation import Conversation
from strata.server.openai.chat_schema import message_of
from strata.server.openai.formats import read_format
from strata.server.openai.responses.schema import ResponsesRequest, Tool
from strata.server.openai.tools import tool_choice

_ROLES = ("system", "developer", "user", "assistant")


def input_items(body: ResponsesRequest) -> list[dict[str, Any]]:
    """The input as items; text is a user's message."""
    if isinstance(body.input, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": body.input}]}]
    return [dict(item) for item in body.input]


def conversation(body: ResponsesRequest, items: Sequence[Mapping[str, Any]]) -> Conversation:
    """In our words; UsageError names what cannot be served."""
    stated = body.text.format if body.text else None
    wanted = read_format(stated, {})
    reasoning = body.reasoning
    return Conversation(
        messages=_messages(body.instructions, items),
        tools=[_tool(tool) for tool in body.tools or ()],
        tool_choice=tool_choice(body.tool_choice, body.parallel_tool_calls),
        grammar=wanted.grammar,
        schema=wanted.schema,
        effort=reasoning.effort if reasoning else None,
        reasoning_budget=reasoning.budget if reasoning else None,
    )


def _messages(instructions: str | None, items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            _add(messages, _message(item))
        elif kind == "reasoning":
            _assistant(messages)["reasoning_content"] = _reasoning(item)
        elif kind == "function_call":
            _assistant(messages).setdefault("tool_calls", []).append(_call(item))
        elif kind == "function_call_output":
            messages.append(_output(item))
        else:
            raise UsageError(f"input item of type {kind!r} is not supported")
    return messages


def _add(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """An assistant's text joins the reasoning before it."""
    last = messages[-1] if messages else {}
    joins = message["role"] == last.get("role") == "assistant" and not last.get("content")
    if joins and not last.get("tool_calls"):
        last["content"] = message["content"]
    else:
        messages.append(message)


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise UsageError(f"input: role is {role!r}; it must be one of {', '.join(_ROLES)}")
    if not isinstance(content, str) and not (
        isinstance(content, list) and all(isinstance(p, dict) for p in content)
    ):
        raise UsageError("input: content must be text or a list of parts")
    return message_of({"role": role, "content": content})


def _reasoning(item: Mapping[str, Any]) -> str:
    parts = [*_dicts(item.get("summary")), *_dicts(item.get("content"))]
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = item.get("name"), item.get("arguments", "{}")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise UsageError("function_call: name and arguments must be text")
    return {
        "id": str(item.get("call_id", "")),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _output(item: Mapping[str, Any]) -> dict[str, Any]:
    output = item.get("output")
    if isinstance(output, list):
        output = message_of({"role": "tool", "content": _dicts(output)})["content"]
    if not isinstance(output, str) or not isinstance(item.get("call_id"), str):
        raise UsageError("function_call_output: call_id and output must be text")
    return {"role": "tool", "tool_call_id": item["call_id"], "content": output}


def _dicts(parts: Any) -> list[dict[str, Any]]:
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _tool(tool: Tool) -> dict[str, Any]:
    if tool.type != "function":
        raise UsageError(f"tool of type {tool.type!r} is not supported; function is")
    if not tool.name:
        raise UsageError("a function tool needs a name")
    function = tool.model_dump(exclude_none=True, include={"name", "description", "parameters", "strict"})
    return {"type": "function", "function": function}
