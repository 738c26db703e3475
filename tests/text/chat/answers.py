"""Answers as models write them, and what a parser makes of them."""

import json

from conversations import TOOLS

from strata.text.chat import ArgumentsDelta, OutputParser, ToolCallEnd, ToolCallStart, ToolStyle, collect

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
