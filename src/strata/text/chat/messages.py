"""Messages as clients send them, brought into the shape that templates read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from strata.errors import UsageError

Message: TypeAlias = Mapping[str, Any]

# Names under which clients send reasoning; templates read the first (gpt-oss: the second).
_REASONING = ("reasoning_content", "thinking", "reasoning")


def normalize(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies without keys that are None, with reasoning under the names that templates read.

    As transformers does it (5.24.0, `apply_chat_template`). UsageError on a message that is no mapping or has no role.
    """
    if not isinstance(messages, list | tuple):
        raise UsageError(f"messages must be a list, got {type(messages).__name__}")
    found = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(f"messages[{index}] must be a mapping with a role")
        kept = {key: value for key, value in message.items() if value is not None}
        reasoning = next((kept[key] for key in _REASONING if key in kept), None)
        if reasoning is not None:
            kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
        found.append(kept)
    return found


def parse_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose tool calls have arguments as objects, where clients sent the JSON text of one."""
    return [
        {**message, "tool_calls": [_parse_call(call) for call in message["tool_calls"]]}
        if isinstance(message.get("tool_calls"), list)
        else message
        for message in messages
    ]


def has_text_arguments(messages: list[dict[str, Any]]) -> bool:
    """Whether any tool call has its arguments as JSON text."""
    return any(parse_arguments([message]) != [message] for message in messages if "tool_calls" in message)


def _parse_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return {**call, "function": _parse_call(call["function"])}
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        return call
    return {**call, "arguments": parsed} if isinstance(parsed, dict) else call
