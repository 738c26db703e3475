"""Answers taken apart: the same events however the text is cut, and nothing lost, invented or held back."""

import json

import pytest
from answers import FOUND, JSON, NONE, WEATHER, XML, events, js, parse, xml
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
        ("x</think>\n\n", True, "x", ""),
        ("a < b <tool <", False, "", "a < b <tool <"),
    ],
)
def test_reasoning_and_content(text, thinking, reasoning, content):
    for style in ToolStyle:
        assert parse(text, style, thinking) == (reasoning, content, [])


def test_a_call_that_the_model_left_in_its_opening_is_text():
    for cut in ("<tool_call>", "<tool_call>\n<fun", "<tool_call>\n<function=get_wea"):
        assert parse("Hi\n" + cut, thinking=False) == ("", "Hi\n" + cut, [])


def cut_off(text, style=ToolStyle.XML, thinking=False):
    parser = OutputParser(style, thinking, TOOLS)
    answer = collect([*parser.push(text), *parser.finish(cut=True)])
    return answer.reasoning, answer.content, [c.arguments for c in answer.tool_calls]


@pytest.mark.parametrize("style", [ToolStyle.XML, ToolStyle.JSON])
def test_of_a_tag_that_a_limit_cut_nothing_is_shown(style):
    opening = (
        "<tool_call>\n<function=get_wea"
        if style is ToolStyle.XML
        else '<tool_call>{"id": [1, "a", {"name": "get_wea'
    )
    for end in range(1, len(opening) + 1):
        assert cut_off("Hi\n" + opening[:end], style) == ("", "Hi", [])
    for end in range(1, len("</think>")):
        assert cut_off("hm\n</think>"[: 3 + end], style, thinking=True) == ("hm", "", [])


def test_what_is_no_tag_stays_where_a_limit_cuts():
    for text in ("the tag <tool_call> is", "a < b", "`<tool_call>", "<tool_call>\nis a tag"):
        assert cut_off(text) == ("", text, [])
    broken = 'Hi\n<tool_call>{"id": "1, "name": "get_weather"}</tool_call>\nAnd more.'
    assert cut_off(broken, ToolStyle.JSON) == ("", broken, []), "it is no call that a limit cut"


def test_arguments_that_a_limit_cut_never_look_whole():
    """Half a tag is no value, and a client that overlooks why the answer ended cannot take them for a call."""
    opening = "<tool_call>\n<function=get_weather>"
    xml = f"{opening}\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n8\n</parameter>\n"
    for end in range(len(opening), len(xml) + 1):
        ((_, _, (arguments,)), (_, _, whole)) = cut_off(xml[:end]), cut_off(xml + "</function>")
        assert "<" not in arguments and "/" not in arguments
        with pytest.raises(ValueError):
            json.loads(arguments)
        assert json.loads(whole[0]) == {"city": "Rome", "days": 8}
    js = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}'
    for end in range(js.index(", "), len(js)):
        (_, _, (arguments,)) = cut_off(js[:end], ToolStyle.JSON)
        with pytest.raises(ValueError):
            json.loads(arguments)


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


PIECES = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=get_weather>",
    "<function=f>",
    "</function>",
    "<parameter=city>",
    "<parameter=days>",
    "<parameter=x>",
    "</parameter>",
    "\n",
    "\n\n",
    " ",
    "`",
    "```",
    "~~~",
    "<",
    ">",
    "</",
    "<tool",
    "a",
    "3",
    "北京",
    "é",
    '"',
    "\\",
    '{"name": "get_weather"',
    ', "arguments": ',
    '{"a": 1}',
    "{",
    "}",
    ",",
    ":",
    '"name"',
    "null",
    WEATHER,
    js("get_weather", {"city": "x"}),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


@settings(max_examples=400, deadline=None)
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


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=200, deadline=None)
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
