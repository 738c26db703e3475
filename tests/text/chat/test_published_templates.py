"""Templates of well-known models: each renders three conversations, and those that refuse one are named with why.

`published_prompts.json` holds the CRC-32 of what `apply_chat_template` of transformers 5.24.0 makes of them, in the
order of CONVERSATIONS, with call arguments in the form, text or object, that the template wants. It refuses the same.
"""

import json
import zlib
from pathlib import Path

import pytest

from strata.errors import StrataError
from strata.text.chat import ChatTemplate

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
SEEN = "你好, weather in 北京?"
USER = {"role": "user", "content": SEEN}
ANSWER = {"role": "assistant", "content": "Mild."}
AGAIN = {"role": "user", "content": "And tomorrow?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name."}},
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "abcdef123",  # Mistral's take nine letters and digits alone
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "北京"}'},
}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "sunny"}
CONVERSATIONS = {
    "one question": ([USER], None),
    "history": ([{"role": "system", "content": "Be brief."}, USER, ANSWER, AGAIN], None),
    "a call": ([USER, CALLS, RESULT], [TOOL]),
}
NEEDS_TOOLS = (
    "'NoneType' object is not iterable"  # variants for conversations with tools loop over them unasked
)
APPENDS = (
    "attribute 'append' of 'list' object is unsafe"  # changes a list, which transformers' sandbox refuses too
)
NO_FUNCTIONS = "'functions' is undefined"  # a variable of its own, which no protocol fills
PROMPTS = json.loads((Path(__file__).parent / "published_prompts.json").read_text())
SUMS = {
    (stem, name): found
    for stem, row in PROMPTS.items()
    for name, found in zip(CONVERSATIONS, row, strict=True)
}
REFUSED = {
    ("CohereForAI-c4ai-command-r-plus-tool_use", "one question"): NEEDS_TOOLS,
    ("CohereForAI-c4ai-command-r-plus-tool_use", "history"): NEEDS_TOOLS,
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "one question"): NEEDS_TOOLS,
    ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "history"): NEEDS_TOOLS,
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "one question"): NEEDS_TOOLS,
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "history"): NEEDS_TOOLS,
    ("Kimi-K2-Instruct", "a call"): APPENDS,
    ("Kimi-K2-Thinking", "a call"): APPENDS,
    ("fireworks-ai-llama-3-firefunction-v2", "one question"): NO_FUNCTIONS,
    ("fireworks-ai-llama-3-firefunction-v2", "history"): NO_FUNCTIONS,
    ("fireworks-ai-llama-3-firefunction-v2", "a call"): NO_FUNCTIONS,
    ("google-gemma-2-2b-it", "history"): "System role not supported",
    ("google-gemma-2-2b-it", "a call"): "Conversation roles must alternate",
    # JSON of what `map` gives, which is no list yet: Python's json refuses it, and so transformers does.
    ("llama-cpp-deepseek-r1", "a call"): "generator is not JSON serializable",
}


def render_all(templates):
    """{(template, conversation): prompt}, and what refused, {(template, conversation): error}."""
    prompts, refused = {}, {}
    for path in templates:
        template = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL)
        for name, (messages, tools) in CONVERSATIONS.items():
            try:
                prompts[path.stem, name] = template.render(messages, tools)
            except StrataError as error:
                refused[path.stem, name] = str(error)
    return prompts, refused


def unlike(prompts):
    """Those that are not what transformers makes; a prompt with today's date has no sum to be compared with."""
    return [key for key, text in prompts.items() if SUMS[key] not in (None, zlib.crc32(text.encode()))]


@pytest.fixture(scope="module")
def templates(vocabularies):
    return sorted((vocabularies.parent / "templates").glob("*.jinja"))


def test_published_templates_render_as_in_transformers(templates):
    assert len(templates) == 70
    prompts, refused = render_all(templates)
    assert set(refused) == set(REFUSED)
    assert {key: text for key, text in refused.items() if REFUSED[key] not in text} == {}
    assert [key for key, text in prompts.items() if SEEN not in text] == []
    assert unlike(prompts) == []
    dated = {path.stem for path in templates if "strftime_now" in path.read_text(encoding="utf-8")}
    assert {stem for stem, name in prompts if SUMS[stem, name] is None} == dated


def test_a_refusal_and_another_prompt_are_seen(tmp_path):
    refusing = tmp_path / "a.jinja"
    refusing.write_text("{{ raise_exception('never') }}")
    assert set(render_all([refusing])[1]) == {("a", name) for name in CONVERSATIONS}
    assert unlike({("Qwen-QwQ-32B", "history"): SEEN}) == [("Qwen-QwQ-32B", "history")]
