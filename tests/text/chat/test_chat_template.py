"""Chat templates: what transformers renders, variants, refusals, and metadata that makes no sense."""

import json
import re
from pathlib import Path

import pytest
from conversations import AGAIN, ANSWER, CALLS, HERMES, QWEN, RESULTS, SYSTEM, TOOLS, USER, call

from strata.errors import ModelFileError, UsageError
from strata.gguf import open_model
from strata.text import Tokenizer
from strata.text.chat import ChatTemplate, ToolStyle, detect_style, effort_options, encode_chat

HERE = Path(__file__).parent
SOURCES = {name: (HERE / "templates" / f"{name}.jinja").read_text() for name in ("qwen38", "hermes")}
GOLDEN = json.loads((HERE / "golden_prompts.json").read_text())
CASES = [("qwen38", name) for name in QWEN] + [("hermes", name) for name in HERMES]
QWEN38, HERMES_TEMPLATE = ChatTemplate(SOURCES["qwen38"]), ChatTemplate(SOURCES["hermes"])


@pytest.mark.parametrize(("template", "name"), CASES)
def test_renders_as_transformers(template, name):
    messages, tools, options = {"qwen38": QWEN, "hermes": HERMES}[template][name]
    assert ChatTemplate(SOURCES[template]).render(messages, tools, **options) == GOLDEN[template][name]


def test_goldens_tell_the_cases_apart():
    for template, cases in (("qwen38", QWEN), ("hermes", HERMES)):
        assert set(GOLDEN[template]) == set(cases)
        assert len(set(GOLDEN[template].values())) == len(cases)
    lines = GOLDEN["qwen38"]["plain"].split("\n")
    assert lines[1].startswith("Reasoning effort is set to xhigh. ") and lines[-2:] == ["<think>", ""]
    assert "Reasoning effort" not in GOLDEN["qwen38"]["medium"] + GOLDEN["qwen38"]["off"]
    assert GOLDEN["qwen38"]["calls"].count("<|im_start|>user") == 2  # both results in one turn
    assert (
        "A greeting." in GOLDEN["qwen38"]["history"]
        and "A greeting." not in GOLDEN["qwen38"]["history dropped"]
    )


@pytest.mark.parametrize(
    ("messages", "options", "says"),
    [
        ([USER, SYSTEM], {}, "the system message must come first"),
        ([USER], {"reasoning_effort": "high"}, "effort high is not one of"),
        ([SYSTEM], {}, "no question from the user"),
        ([{"role": "user", "content": 7}, USER], {}, "must be text or a list"),
        ([{"role": "critic", "content": "x"}, USER], {}, "unknown role critic"),
    ],
)
def test_refusals(messages, options, says):
    with pytest.raises(UsageError, match=f"refuses the conversation: .*{says}"):
        QWEN38.render(messages, **options)


@pytest.mark.parametrize("messages", ["hello", [{"content": "x"}], ["x"], [{"role": 3}], None])
def test_messages_of_another_shape(messages):
    with pytest.raises(UsageError, match="message"):
        QWEN38.render(messages)


def test_options_that_are_none_are_the_templates_own():
    nothing = {"enable_thinking": None, "reasoning_effort": None, "preserve_thinking": None}
    assert QWEN38.render([USER, ANSWER, AGAIN], **nothing) == QWEN38.render([USER, ANSWER, AGAIN])
    assert ChatTemplate("{{ colour }}").render([USER], colour="red") == "red"


def test_efforts_of_clients():
    plain = QWEN38.render([USER])
    for effort in ("max", "high", "xhigh"):
        assert QWEN38.render([USER], **effort_options(QWEN38, effort)) == plain
    assert effort_options(QWEN38, "minimal") == effort_options(QWEN38, "low")
    assert QWEN38.render([USER], **effort_options(QWEN38, "none")) == QWEN38.render(
        [USER], enable_thinking=False
    )
    assert effort_options(QWEN38, None) == {}
    assert effort_options(ChatTemplate("{{ reasoning_effort }}"), "high") == {"reasoning_effort": "high"}


def test_arguments_as_json_text_render_as_objects():
    for template in (QWEN38, HERMES_TEMPLATE):
        calls = [
            call(c["function"]["name"], json.dumps(c["function"]["arguments"])) for c in CALLS["tool_calls"]
        ]
        as_text = CALLS | {"tool_calls": calls}
        assert template.render([USER, as_text, *RESULTS]) == template.render([USER, CALLS, *RESULTS])
    wants_text = ChatTemplate("{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments + ';' }}"
                              "{% endfor %}{% endfor %}")  # fmt: skip
    assert wants_text.render([{"role": "assistant", "tool_calls": [call("f", '{"a": 1}')]}]) == '{"a": 1};'
    either = ChatTemplate("{% for c in messages[-1].tool_calls %}{{ c.function.arguments }}{% endfor %}")
    assert either.render([{"role": "assistant", "tool_calls": [call("f", '{"a": 1}')]}]) == '{"a": 1}'
    broken = {"role": "assistant", "tool_calls": [call("f", "{")]}
    with pytest.raises(UsageError, match="fails on this conversation"):
        QWEN38.render([USER, broken])


def test_messages_are_brought_into_shape_and_left_alone():
    said = {"role": "assistant", "content": None, "reasoning": "Because.", "tool_calls": None}
    before = json.dumps([USER, said])
    assert "<think>\nBecause.\n</think>" in QWEN38.render([USER, said])
    assert json.dumps([USER, said]) == before
    thinking = ChatTemplate("{{ messages[0].thinking }}|{{ messages[0].content is defined }}")
    assert thinking.render([said]) == "Because.|False"


def test_foreign_objects_do_not_reach_the_template():
    template = ChatTemplate("{{ messages[0].content }}")
    assert template.render([{"role": "user", "content": Path("/")}]) == "<PosixPath>"


def metadata(**templates):
    tokens = ["<unk>", "<s>", "</s>"]
    keys = {"tokens": tokens, "bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 9}
    named = {f"tokenizer.chat_template{k}": v for k, v in templates.items()}
    return {f"tokenizer.ggml.{k}": v for k, v in keys.items()} | named


def test_variants_and_special_tokens():
    keys = metadata(
        **{"": "{{ bos_token }}plain{{ eos_token }}{{ pad_token }}", ".tool_use": "with {{ tools | length }}"}
    )
    template = ChatTemplate.from_metadata(keys)
    assert template.render([USER]) == "<s>plain</s>" and template.render([USER], TOOLS) == "with 2"
    assert template.render([USER], []) == "<s>plain</s>"
    assert ChatTemplate.from_metadata(keys, "tool_use").render([USER], TOOLS) == "with 2"
    with pytest.raises(ModelFileError, match=r"chat_template.rag is missing.*variants: tool_use"):
        ChatTemplate.from_metadata(keys, "rag")


@pytest.mark.parametrize(
    ("templates", "says"),
    [
        ({}, "chat_template is missing"),
        ({"": 3}, "must be a string, got int"),
        ({"": "a\n{% if %}"}, "chat_template line 2: "),
        ({"": "{{ x | nosuch }}"}, "line 1: No filter named 'nosuch'"),
        ({"": "x" * 1_000_001}, "1000001 characters, 1000000 are allowed"),
        ({"": "{{ " + "(" * 5000 + ")" * 5000 + " }}"}, "nests too deep"),
        ({"": "ok", ".tool_use": "{% for %}"}, "tool_use line 1"),
    ],
)
def test_bad_templates(templates, says):
    with pytest.raises(ModelFileError, match=says) as error:
        ChatTemplate.from_metadata(metadata(**templates))
    assert "\n" not in str(error.value)


def test_styles():
    assert ChatTemplate("").style is ToolStyle.NONE
    assert (QWEN38.style, HERMES_TEMPLATE.style) == (ToolStyle.XML, ToolStyle.JSON)
    assert (
        detect_style("<tool_call>{{ name }}\n<arg_key>") is ToolStyle.NONE
    )  # another format with the same tags
    assert detect_style("<function={{ name }}>") is ToolStyle.NONE
    assert detect_style(r"'<tool_call>\n{\"name\": \"'") is ToolStyle.JSON


def test_smollm2(smollm2_path):
    found = open_model(smollm2_path).metadata
    template, tokenizer = ChatTemplate.from_metadata(found), Tokenizer.from_metadata(found)
    prompt = encode_chat(tokenizer, template, [USER, ANSWER, AGAIN])
    greeting = re.escape(
        "<|im_start|>user\nHello <there> & 你好<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n"
    )
    asked = re.escape("<|im_start|>user\nAnd in 北京?<|im_end|>\n<|im_start|>assistant\n")
    assert re.fullmatch(r"<\|im_start\|>system\n[^<]+<\|im_end\|>\n" + greeting + asked, prompt.text)
    assert prompt.token_ids == tokenizer.encode(prompt.text)
    assert (prompt.style, prompt.starts_in_thinking) == (ToolStyle.NONE, False)
    own = template.render([SYSTEM, USER])
    assert own.startswith("<|im_start|>system\n  Be brief.\n<|im_end|>\n")
