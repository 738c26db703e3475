"""Answers taken apart: the same events however the text is cut, and nothing lost, invented or held back."""

import json

import pytest
from conversations import TOOLS
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.text.chat import (
    ArgumentsDelta,
    ContentDelta,
    OutputParser,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolStyle,
    collect,
)

XML, JSON, NONE = ToolStyle.XML, ToolStyle.JSON, ToolStyle.NONE


def events(text, style=XML, thinking=True, tools=TOOLS, cuts=()):
    """Events of the text pushed in pieces, neighbours of one kind put together."""
    parser = OutputParser(style, thinking, tools)
    found = []
    for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        found += parser.push(text[begin:end])
    merged = []
    for event in [*found, *parser.finish()]:
        if (
            isinstance(event, ToolCallStart | ToolCallEnd)
            or not merged
            or type(merged[-1]) is not type(event)
        ):
            merged.append(event)
        elif isinstance(event, ArgumentsDelta):
            merged[-1] = ArgumentsDelta(event.index, merged[-1].text + event.text)
        else:
            merged[-1] = type(event)(merged[-1].text + event.text)
    return merged


def parse(text, *args, **kwargs):
    """(reasoning, content, [(name, arguments, complete)]) of an answer."""
    output = collect(events(text, *args, **kwargs))
    return output.reasoning, output.content, [(c.name, c.arguments, c.complete) for c in output.tool_calls]


def xml(name, *parameters):
    """A call as the models write it."""
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def js(name, arguments):
    return (
        "<tool_call>\n"
        + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        + "\n</tool_call>"
    )


WEATHER = xml("get_weather", ("city", "北京"))
FOUND = ("get_weather", '{"city": "北京"}', True)


@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "content"),
    [
        ("hm\n</think>\n\nHi", True, "hm", "Hi"),
        ("\nhm \n\n</think>\n\n  x = 1\n", True, "hm", "  x = 1\n"),
        ("</think>\n\nHi", True, "", "Hi"),
        ("\n\n</think>\n\nHi", True, "", "Hi"),
        ("<think>\n\n</think>\n\nHi", False, "", "Hi"),
        ("\n<think>\nhm\n</think>\n\nHi", False, "hm", "Hi"),
        ("<think>\nhm</think>Hi", True, "hm", "Hi"),
        ("\n Hi\n", False, "", "\n Hi\n"),
        ("Hi <think>no</think>", False, "", "Hi <think>no</think>"),
        ("Hi </think> there", False, "", "Hi </think> there"),
        ("hm </think> a </think> b", True, "hm", " a </think> b"),
        ("cut off\n", True, "cut off\n", ""),
        ("cut off </thi", True, "cut off </thi", ""),
        ("the `</think>` tag\n</think>\nHi", True, "the `</think>` tag", "Hi"),
        ("a stray ` here</think>\nHi", True, "a stray ` here", "Hi"),
        ("a stray ` here</think>", True, "a stray ` here", ""),
        ("```\ncode\n</think>\n\nHi", True, "```\ncode", "Hi"),
        ("", True, "", ""),
        ("\n\n", True, "", ""),
        ("a < b <tool <", False, "", "a < b <tool <"),
    ],
)
def test_reasoning_and_content(text, thinking, reasoning, content):
    for style in ToolStyle:
        assert parse(text, style, thinking) == (reasoning, content, [])


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


def test_several_calls_and_text_around():
    text = f"Why.\n</think>\n\nLet me.\n\n{WEATHER}\n{xml('write_file')}\n\n{WEATHER}\nDone."
    assert parse(text) == ("Why.", "Let me.Done.", [FOUND, ("write_file", "{}", True), FOUND])
    order = [type(e).__name__ for e in events(text)]
    assert order[:6] == ["ReasoningDelta", "ContentDelta", "ToolCallStart", "ArgumentsDelta", "ToolCallEnd", "ToolCallStart"]  # fmt: skip
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
        (WEATHER.replace("\n</parameter>\n", "\n<parameter=days>\n3\n</parameter>\n"), '{"city": "北京", "days": 3}', True),
        (WEATHER.split("</function>")[0], FOUND[1], False),
        (WEATHER.split("</parameter>")[0] + "</param", '{"city": "北京\\n</param', False),
        (WEATHER.split("京")[0], '{"city": "北', False),
        (WEATHER.split("\n北")[0], '{"city": ', False),
        (WEATHER.split("<parameter")[0], "{}", False),
        ("<tool_call>\n<function=get_weather>\n<parameter=days>\n3", '{"days": 3', False),
    ],
)  # fmt: skip
def test_missing_tags_and_cut_off_calls(text, arguments, complete):
    assert parse("Hi\n" + text, thinking=False) == ("", "Hi", [("get_weather", arguments, complete)])


def test_a_call_cut_off_in_its_opening_is_text():
    for cut in ("<tool_call>", "<tool_call>\n<fun", "<tool_call>\n<function=get_wea"):
        assert parse("Hi\n" + cut, thinking=False) == ("", "Hi\n" + cut, [])


def test_calls_inside_unclosed_thinking():
    assert parse(f"I will look.\n\n{WEATHER}") == ("I will look.", "", [FOUND])
    assert parse(f"I will.\n{WEATHER}\n</think>\n\nSo.") == ("I will.", "So.", [FOUND])
    assert parse(f"I will.\n{WEATHER}\nAnd then\n</think>\nSo.") == ("I will.And then", "So.", [FOUND])
    json_call = js("get_weather", {"city": "北京"})
    assert parse(f"I will.\n{json_call}", JSON) == ("I will.", "", [FOUND])


@pytest.mark.parametrize(
    "quoted",
    [
        f"`{WEATHER}`",
        f"```xml\n{WEATHER}\n```",
        f"~~~~\n```\n{WEATHER}\n~~~\n{WEATHER}\n~~~~",
        "write <tool_call> and then",
        "`<tool_call>\n<function=` and so on",
        "<tool_call>\nnot a call\n</tool_call>",
        "<function=nobody>\n</function>",
        "say <function=get_weather>",
        "<tool_call>\n<function=\n>",
    ],
)
def test_quoted_calls_stay_text(quoted):
    assert parse(f"Say:\n{quoted}\nok", thinking=False) == ("", f"Say:\n{quoted}\nok", [])
    assert parse(f"Say:\n{quoted}\n</think>\n\n{quoted}\n{WEATHER}") == (f"Say:\n{quoted}", quoted, [FOUND])


def test_reasoning_needs_more_of_a_call_than_content_does():
    for draft in (xml("nobody"), f"like {WEATHER}"):
        assert parse(draft + "\n</think>\nHi") == (draft, "Hi", [])
        assert len(parse(draft, thinking=False)[2]) == 1


def test_without_tools_calls_stay_text():
    assert parse(f"a\n</think>\nb {WEATHER}", NONE) == ("a", f"b {WEATHER}", [])
    assert parse(WEATHER, thinking=False, tools=None) == ("", "", [FOUND])
    assert [e.known for e in events(WEATHER, thinking=False, tools=None) if isinstance(e, ToolCallStart)] == [
        False
    ]


@pytest.mark.parametrize(
    ("call", "arguments", "complete"),
    [
        (js("get_weather", {"city": "</tool_call> \" \\ 北", "a": [{}, "}"]}), None, True),
        (js("get_weather", {}), "{}", True),
        ('<tool_call>{"name":"get_weather","arguments":{"a":1}}</tool_call>', '{"a":1}', True),
        ('<tool_call>\n{"name": "get_weather"}\n</tool_call>', "{}", True),
        ('<tool_call>\n{"name": "get_weather", "arguments": null}\n</tool_call>', "{}", True),
        ('<tool_call>\n{"name": "get_weather", "parameters": {"a": 1}}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": "{\\"a\\": 1}"}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"arguments": {"name": "x"}, "name": "get_weather"}\n</tool_call>', '{"name": "x"}', True),
        ('<tool_call>\n{"id": 7, "name": "get_weather", "arguments": {"a": 1}}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}, "id": [1]}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}}}\n</tool_call>', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1}}\n', '{"a": 1}', True),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1\n</tool_call>', '{"a": 1\n', False),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": 1,}}\n</tool_call>', '{"a": 1,}', False),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"a": "x', '{"a": "x', False),
        ('<tool_call>\n{"name": "get_weather", "arg', "{}", False),
    ],
)  # fmt: skip
def test_json_calls(call, arguments, complete):
    expected = (
        arguments
        if arguments is not None
        else json.dumps(json.loads(call[11:-12])["arguments"], ensure_ascii=False)
    )
    assert parse(f"Hi\n\n{call}", JSON, thinking=False) == ("", "Hi", [("get_weather", expected, complete)])


@pytest.mark.parametrize(
    "text",
    ["<tool_call>\nno\n</tool_call>", "<tool_call>{}", '<tool_call>{"nam', '<tool_call>{"x": 1, "name": "f"}', "<tool_call>{1}",
     '<tool_call>{"name": 3}', '`<tool_call>{"name": "f"}`', '<tool_call>{"arguments": {}, "name": ""}', '<tool_call>{"id": }'],
)  # fmt: skip
def test_json_that_is_no_call_stays_text(text):
    assert parse(text, JSON, thinking=False) == ("", text, [])


PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=get_weather>", "<function=f>", "</function>",
    "<parameter=city>", "<parameter=days>", "<parameter=x>", "</parameter>", "\n", "\n\n", " ", "`", "```", "~~~",
    "<", ">", "</", "<tool", "a", "3", "北京", "é", '"', "\\", '{"name": "get_weather"', ', "arguments": ', '{"a": 1}', "{", "}",
    ",", ":", '"name"', "null", WEATHER, js("get_weather", {"city": "x"}),
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


@settings(max_examples=400)
@given(TEXTS, st.sampled_from([*ToolStyle]), st.booleans(), st.sampled_from([TOOLS, None]), st.data())
def test_cuts_change_nothing(text, style, thinking, tools, data):
    whole = events(text, style, thinking, tools)
    assert events(text, style, thinking, tools, cuts=range(1, len(text))) == whole
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    assert events(text, style, thinking, tools, cuts) == whole


def test_every_cut_of_ordinary_answers():
    for style, call in (
        (XML, WEATHER + xml("write_file", ("a", "x\n</parameter>\ny"))),
        (JSON, js("get_weather", {"a": "<"})),
    ):
        text = f"One `</think>` two.\n</think>\n\nLet < me.\n\n{call}\n"
        whole = events(text, style)
        assert len([e for e in whole if isinstance(e, ToolCallEnd)]) >= 1
        for first in range(len(text)):
            assert events(text, style, cuts=(first,)) == whole
            assert events(text, style, cuts=(first, min(first + 3, len(text)))) == whole


@settings(max_examples=200)
@given(TEXTS, st.sampled_from([XML, JSON]))
def test_calls_are_well_formed(text, style):
    open_call = None
    for event in events(text, style):
        if isinstance(event, ToolCallStart):
            assert open_call is None
            open_call, arguments = event.index, ""
        elif isinstance(event, ArgumentsDelta):
            assert event.index == open_call
            arguments += event.text
        elif isinstance(event, ToolCallEnd):
            assert event.index == open_call
            open_call = None
            if event.complete:
                json.loads(arguments)
        else:
            assert open_call is None and event.text
    assert open_call is None


@settings(max_examples=200)
@given(st.lists(st.sampled_from([p for p in PIECES if p not in (WEATHER,)]), max_size=24).map("".join))
def test_text_without_tags_comes_back_whole(text):
    assert parse(text.replace("<think>", ""), NONE, thinking=False) == ("", text.replace("<think>", ""), [])


def shown(text, **options):
    parser = OutputParser(options.get("style", XML), options.get("thinking", False), TOOLS)
    return "".join(
        e.text for e in parser.push(text) if isinstance(e, ContentDelta | ReasoningDelta | ArgumentsDelta)
    )


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Hello, wor", "Hello, wor"),
        ("Hello ", "Hello"),
        ("a <", "a"),
        ("a <b", "a <b"),
        ("a <tool_cal", "a"),
        ("a <tool_calx", "a <tool_calx"),
        ("a <tool_call>\n<function=get", "a"),
        ("a <tool_call>\nx", "a <tool_call>\nx"),
        ("a `<", "a `<"),
        (WEATHER.split("\n</parameter")[0], '{"city": "北京'),
        (WEATHER.split("\n</parameter")[0] + "\n</parameter>\n</f", '{"city": "北京'),
        (WEATHER.split("\n</parameter")[0] + "\n</parameter>\n</fx", '{"city": "北京\\n</parameter>\\n</fx'),
    ],
)
def test_held_back_is_only_what_may_become_a_tag(text, seen):
    assert shown(text) == seen


def test_arguments_stream():
    call = js("get_weather", {"city": "北京"})
    for end in range(call.index("{", 14) + 1, len(call) - len("}\n</tool_call>")):
        assert shown(call[:end], style=JSON) == call[call.index("{", 14) : end]


@settings(max_examples=200)
@given(TEXTS)
def test_waiting_is_bounded(text):
    """Behind any text, 300 letters without a tag are more than a name, a tag and space: something must come."""
    parser = OutputParser(XML, True, [])
    before = sum(len(e.text) for e in parser.push(text) if isinstance(e, ContentDelta | ReasoningDelta))
    more = sum(
        len(e.text) for e in parser.push(" " + "x" * 300) if isinstance(e, ContentDelta | ReasoningDelta)
    )
    assert more >= 300 or any(isinstance(e, ToolCallStart) for e in events(text, tools=[]))
    assert before <= len(text)
