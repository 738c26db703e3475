"""Templates of well-known models: each renders three conversations, and those that refuse one are named with why."""

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
    """What refused, {(template, conversation): error}, and what came out without the user's words."""
    refused, lost = {}, []
    for path in templates:
        template = ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL)
        for name, (messages, tools) in CONVERSATIONS.items():
            try:
                text = template.render(messages, tools)
            except StrataError as error:
                refused[path.stem, name] = str(error)
            else:
                lost += [] if SEEN in text else [(path.stem, name)]
    return refused, lost


@pytest.fixture(scope="module")
def templates(vocabularies):
    return sorted((vocabularies.parent / "templates").glob("*.jinja"))


def test_published_templates_render(templates):
    assert len(templates) == 70
    refused, lost = render_all(templates)
    assert lost == []
    assert set(refused) == set(REFUSED)
    wrong = {key: text for key, text in refused.items() if REFUSED[key] not in text}
    assert wrong == {}


def test_a_template_that_refuses_or_loses_the_question_is_seen(tmp_path):
    refusing, losing = tmp_path / "a.jinja", tmp_path / "b.jinja"
    refusing.write_text("{{ raise_exception('never') }}")
    losing.write_text("{{ messages | length }}")
    refused, lost = render_all([refusing, losing])
    assert set(refused) == {("a", name) for name in CONVERSATIONS}
    assert lost == [("b", name) for name in CONVERSATIONS]
