"""Tool calls: parameters by schema, values that look like tags, missing tags, calls cut off, the JSON format."""

import json
from pathlib import Path

import pytest
from answers import FOUND, JSON, WEATHER, XML, events, js, parse, xml
from conversations import USER, call
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.text.chat import (
    ArgumentsDelta,
    ChatTemplate,
    ContentDelta,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
)


@pytest.mark.parametrize(
    ("value", "key", "found"),
    [
        ('北京 "q" \\ \u0001', "city", '"北京 \\"q\\" \\\\ \\u0001"'),
        ("3", "city", '"3"'),
        ("", "city", '""'),
        ("\n two\n\n", "city", '"\\n two\\n\\n"'),
        ("3", "days", "3"),
        (" 3.0 ", "days", "3"),
        ("three", "days", '"three"'),
        ("True", "exact", "true"),
        ("null", "limit", "null"),
        ("2.5", "limit", "2.5"),
        ('{"a": [1, "</parameter>"]}', "options", '{"a": [1, "</parameter>"]}'),
        ("{'a': 1}", "options", "\"{'a': 1}\""),
        ('["a"]', "tags", '["a"]'),
        ("C", "unit", '"C"'),
        ("3", "anything", "3"),
        ("x", "anything", '"x"'),
        ('"q"', "anything", '"\\"q\\""'),
        (xml("f", ("days", "3")), "city", json.dumps(xml("f", ("days", "3")))),
        ("[1]", "either", "[1]"),
        ("1", "either", '"1"'),
        ("3", "unheard_of", '"3"'),
    ],
)
def test_parameters_by_schema(value, key, found):
    assert parse(xml("get_weather", (key, value)), thinking=False)[2] == [
        ("get_weather", f'{{"{key}": {found}}}', True)
    ]
    json.loads(found)


@pytest.mark.parametrize(
    "schema", [{"type": 7}, {"$ref": "#/nowhere"}, {"$ref": "#"}, 3, {"enum": "C"}, {"anyOf": 5}]
)
def test_schemas_that_make_no_sense(schema):
    tools = [{"function": {"name": "f", "parameters": {"properties": {"a": schema}}}}]
    assert json.loads(parse(xml("f", ("a", "[1]")), thinking=False, tools=tools)[2][0][1])["a"] in (
        [1],
        "[1]",
    )


def test_a_missing_tag_behind_a_quoted_call():
    text = xml("write_file", ("text", WEATHER)).removesuffix("</parameter>\n</function>\n</tool_call>")
    text += "</function>\n</tool_call>"
    assert parse(text, thinking=False)[2] == [
        ("write_file", json.dumps({"text": WEATHER}, ensure_ascii=False), True)
    ]


def test_space_behind_a_call_is_no_content():
    assert parse(WEATHER + " \n ", thinking=False) == ("", "", [FOUND])


def test_several_calls_and_text_around():
    text = f"Why.\n</think>\n\nLet me.\n\n{WEATHER}\n{xml('write_file')}\n\n{WEATHER}\nDone."
    assert parse(text) == ("Why.", "Let me.Done.", [FOUND, ("write_file", "{}", True), FOUND])
    order = [type(e) for e in events(text)]
    assert order[:5] == [ReasoningDelta, ContentDelta, ToolCallStart, ArgumentsDelta, ToolCallEnd]
    assert [e.index for e in events(text) if isinstance(e, ToolCallStart)] == [0, 1, 2]


def test_unknown_names_are_passed_on_and_flagged():
    for style, write in ((XML, xml), (JSON, lambda name: js(name, {}))):
        starts = [
            e
            for e in events(write("nope") + write("write_file"), style, False)
            if isinstance(e, ToolCallStart)
        ]
        assert [(e.name, e.known) for e in starts] == [("nope", False), ("write_file", True)]


TAG_LIKE = [
    "a </parameter> b",
    "</parameter>x",
    "<parameter=days>inline</parameter>",
    "text\n</parameter>\nmore",
    "</function>",
    "x\n</function>\nnot the end",
    "</tool_call>",
    "<tool_call>",
    "<think></think>",
    "<div>\n</div",
    "\n".join(["See:", WEATHER, "and", xml("f", ("a", "1"), ("b", "2")), "end"]),
    xml("f", ("a", "x </parameter> y")),
    "<parameter=zzz>\nquoted\n</parameter>\nafter",
]


@pytest.mark.parametrize("value", TAG_LIKE)
def test_values_that_look_like_tags(value):
    text = xml("write_file", ("path", "p"), ("text", value), ("mode", "w")) + "\nok"
    reasoning, content, calls = parse(text, thinking=False)
    assert (reasoning, content) == ("", "ok")
    assert [(name, json.loads(a), c) for name, a, c in calls] == [
        ("write_file", {"path": "p", "text": value, "mode": "w"}, True)
    ]


@pytest.mark.parametrize(
    ("text", "arguments", "complete"),
    [
        (WEATHER.removesuffix("\n</tool_call>"), FOUND[1], True),
        (WEATHER.replace("</function>\n", ""), FOUND[1], True),
        (WEATHER.replace("</parameter>\n", ""), FOUND[1], True),
        (WEATHER.replace("<tool_call>\n", ""), FOUND[1], True),
        (WEATHER.replace("\n", ""), FOUND[1], True),
        (
            WEATHER.replace("</parameter>", "<parameter=days>\n3\n</parameter>"),
            '{"city": "北京", "days": 3}',
            True,
        ),
        (WEATHER.split("</function>")[0], FOUND[1], False),
        (WEATHER.split("</parameter>")[0] + "</param", '{"city": "北京\\n</param', False),
        (WEATHER.split("京")[0], '{"city": "北', False),
        (WEATHER.split("\n北")[0], '{"city": ', False),
        (WEATHER.split("<parameter")[0], "{}", False),
        ("<tool_call>\n<function=get_weather>\n<parameter=days>\n3", '{"days": 3', False),
    ],
)
def test_missing_tags_and_cut_off_calls(text, arguments, complete):
    assert parse("Hi\n" + text, thinking=False) == ("", "Hi", [("get_weather", arguments, complete)])


@pytest.mark.parametrize(
    ("call", "arguments", "complete"),
    [
        (js("get_weather", {"city": '</tool_call> " \\ 北', "a": [{}, "}"]}), None, True),
        (js("get_weather", {}), "{}", True),
        ('<tool_call>{"name":"get_weather","arguments":{"a":1}}</tool_call>', '{"a":1}', True),
        ('<tool_call>\n{"name": "get_weather"}\n</tool_call>', "{}", True),
        ('<tool_call>\n{"name": "get_weather", "arguments": nope}\n</tool_call>', "nope", False),
        ('<tool_call>\n{"name": "get_weather", "arguments": ""}\n</tool_call>', "{}", True),
        ('<tool_call>\n{"id": "\\"}", "name": "get_weather"}\n</tool_call>', "{}", True),
        ('<tool_call>\n{"name": "get_weather", "arguments": null}\n</tool_call>', "{}", True),
        ('<tool_call>\n{"name": "get_weather", "parameters": {"a": 1}}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": "{\\"a\\": 1}"}\n</tool_call>', '{"a": 1}', True),
        (
            '<tool_call>\n{"arguments": {"name": "x"}, "name": "get_weather"}\n</tool_call>',
            '{"name": "x"}',
            True,
        ),
        (
            '<tool_call>\n{"id": 7, "name": "get_weather", "arguments": {"a": 1}}\n</tool_call>',
            '{"a": 1}',
            True,
        ),
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}, "id": [1]}\n</tool_call>',
            '{"a": 1}',
            True,
        ),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}}}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}}\n', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1\n</tool_call>', '{"a": 1\n', False),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1,}}\n</tool_call>', '{"a": 1,}', False),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": "x', '{"a": "x', False),
        ('<tool_call>\n{"name": "get_weather", "arg', "{}", False),
    ],
)
def test_json_calls(call, arguments, complete):
    expected = (
        arguments
        if arguments is not None
        else json.dumps(json.loads(call[11:-12])["arguments"], ensure_ascii=False)
    )
    assert parse(f"Hi\n\n{call}", JSON, thinking=False) == ("", "Hi", [("get_weather", expected, complete)])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nno\n</tool_call>",
        "<tool_call>{}",
        '<tool_call>{"nam',
        '<tool_call>{"x": 1, "name": "f"}',
        "<tool_call>{1}",
        '<tool_call>{"name": 3}',
        '`<tool_call>{"name": "f"}`',
        '<tool_call>{"arguments": {}, "name": ""}',
        '<tool_call>{"id": }',
        '<tool_call>{"id": [}',
        '<tool_call>{"name": "\\x"}',
        '<tool_call>{"type": "a}"}',
    ],
)
def test_json_that_is_no_call_stays_text(text):
    assert parse(text, JSON, thinking=False) == ("", text, [])


QWEN38 = ChatTemplate((Path(__file__).parent / "templates" / "qwen38.jinja").read_text())
TEXT = st.text(st.sampled_from('ab <>/\n"\\{}`é京=:'), max_size=30)
VALUES = st.one_of(TEXT, st.integers(), st.booleans(), st.none(), st.lists(TEXT, max_size=2))


@settings(deadline=None)
@given(TEXT, TEXT, st.lists(st.dictionaries(st.sampled_from("pqr"), VALUES), max_size=3))
def test_what_a_template_writes_is_read_back(reasoning, content, arguments):
    """An answer of the history, rendered and parsed: the same answer, but for the space that templates trim."""
    content = content.replace("`", "")  # which may open a code span or a fence, in which calls are quoted
    tools = [{"function": {"name": "f", "parameters": {"properties": {k: {} for k in "pqr"}}}}]
    said = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    said["tool_calls"] = [call("f", item) for item in arguments]
    prompt = QWEN38.render([USER], tools)
    turn = QWEN38.render([USER, said], tools, add_generation_prompt=False)[len(prompt) :]
    found = parse(turn.removesuffix("<|im_end|>\n"), XML, tools=tools)
    expected = [{k: as_read(v) for k, v in item.items()} for item in arguments]
    assert found[:2] == (reasoning.strip(), content.strip())
    assert [json.loads(a) for _, a, _ in found[2]] == expected
    assert all(complete for *_, complete in found[2])


def as_read(value):
    """A parameter of any type whose text is JSON is read as JSON: raw text does not say which it was."""
    if isinstance(value, str):
        try:
            decoded = json.loads(value)
        except ValueError:
            return value
        return value if isinstance(decoded, str) else decoded
    return value
