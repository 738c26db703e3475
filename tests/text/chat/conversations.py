"""Conversations and functions that several tests render."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather <now> & later",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "exact": {"type": "boolean"},
                "limit": {"type": ["number", "null"]},
                "options": {"type": "object"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "anything": {},
                "unit": {"enum": ["C", "F"]},
                "either": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/pair"}]},
            },
            "$defs": {"pair": {"type": "array"}},
        },
    },
}
TOOLS = [WEATHER, {"type": "function", "function": {"name": "write_file", "parameters": {}}}]


def call(name, arguments):
    """A tool call as clients send it back."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


USER = {"role": "user", "content": "Hello <there> & 你好"}
SYSTEM = {"role": "system", "content": "  Be brief.\n"}
ANSWER = {"role": "assistant", "content": "Hi!", "reasoning_content": "A greeting.\n"}
AGAIN = {"role": "user", "content": "And in 北京?"}
CALLS = {
    "role": "assistant",
    "content": "Looking.",
    "reasoning_content": "Need the weather.",
    "tool_calls": [
        call("get_weather", {"city": "北京", "days": 3, "options": {"a": [1, None, True]}}),
        call("get_weather", {"city": 'a "b"\n<c>', "exact": False}),
    ],
}
ONLY_CALL = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {})]}
RESULTS = [{"role": "tool", "content": "sunny & <hot>"}, {"role": "tool", "content": '{"t": 21}'}]
PICTURE = {
    "role": "user",
    "content": [
        {"type": "text", "text": "What is this? "},
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "video", "video": "x"},
        {"type": "text", "text": "Say."},
    ],
}

# name: (messages, tools, options)
QWEN = {
    "plain": ([USER], None, {}),
    "low": ([USER], None, {"reasoning_effort": "low"}),
    "medium": ([USER], None, {"reasoning_effort": "medium"}),
    "medium with system": ([SYSTEM, USER], None, {"reasoning_effort": "medium"}),
    "off": ([SYSTEM, USER], None, {"enable_thinking": False}),
    "off, no system": ([USER], None, {"enable_thinking": False, "reasoning_effort": "low"}),
    "no generation": ([USER, ANSWER], None, {"add_generation_prompt": False}),
    "history": ([SYSTEM, USER, ANSWER, AGAIN], None, {}),
    "history dropped": ([SYSTEM, USER, ANSWER, AGAIN], None, {"preserve_thinking": False}),
    "tools": ([SYSTEM, USER], TOOLS, {}),
    "tools, off": ([USER], TOOLS, {"enable_thinking": False}),
    "calls": ([USER, CALLS, *RESULTS], TOOLS, {"reasoning_effort": "low"}),
    "calls, then more": ([USER, CALLS, *RESULTS, ANSWER, AGAIN, ONLY_CALL, RESULTS[0]], TOOLS, {}),
    "calls dropped": (
        [USER, CALLS, *RESULTS, ANSWER, AGAIN, ONLY_CALL, RESULTS[0]],
        TOOLS,
        {"preserve_thinking": False},
    ),
    "vision": ([PICTURE, ANSWER, AGAIN], None, {"reasoning_effort": "medium"}),
}
HERMES = {
    "plain": ([USER], None, {}),
    "history": ([SYSTEM, USER, ANSWER, AGAIN], None, {}),
    "tools": ([SYSTEM, USER], TOOLS, {}),
    "calls": ([USER, CALLS, *RESULTS, ANSWER, AGAIN, ONLY_CALL, RESULTS[0]], TOOLS, {}),
}
