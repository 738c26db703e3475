"""Tools for templates that know none: described in the system message, called and answered in the JSON style."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strata.text.chat.messages import Message
from strata.text.chat.schema import Tool

_INTRODUCTION = """You can call these functions, one JSON object a line:
{tools}

To call one, answer with its name and arguments between tags, and nothing else:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
Results come back between <tool_response> tags."""


def describe_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The conversation in system, user and assistant messages of text alone, `tools` described in the first."""
    lines = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    introduction = _INTRODUCTION.format(tools=lines) if tools else ""
    plain = [_plain(message) for message in messages]
    if plain and plain[0]["role"] == "system":
        system = "\n\n".join(filter(None, (plain[0]["content"], introduction)))
        return [{"role": "system", "content": system}, *plain[1:]]
    return [{"role": "system", "content": introduction}, *plain] if introduction else plain


def _plain(message: Message) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [_call(call) for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
    kept = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id", "name")}
    return {**kept, "content": "\n".join(filter(None, [content, *calls]))}


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function.get("name"), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text}}}\n</tool_call>'
