"""Constrained decoding on a model that says anything: whatever it wants, what is asked for comes.

Logits of the random model differ by tens, so that it takes a temperature of 30 to make it say anything. The same at
temperature 1 on a real model is measured (docs/measurements.md).
"""

import json
import re

import jsonschema_rs
import pytest
from requests_over import CHAT, TEXT, post

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 3},
        "inner": {
            "anyOf": [
                {"type": "null"},
                {"type": "object", "properties": {"x": {"type": "boolean"}}, "additionalProperties": False},
            ]
        },
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ARGUMENTS = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 8},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "kind": {"type": "string", "enum": ["long", "short"]},
        "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["text", "count", "kind"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "measure", "parameters": ARGUMENTS}}
OTHER = {"type": "function", "function": {"name": "stop"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
is_person = jsonschema_rs.validator_for(SCHEMA).is_valid
is_call = jsonschema_rs.validator_for(ARGUMENTS).is_valid


def choices(server, count, **fields):
    """Answers of `count` seeds, several a request."""
    found = []
    for seed in range(0, count, 10):
        body = {
            "messages": [{"role": "user", "content": "x"}],
            "temperature": 30,
            "n": 10,
            "seed": seed,
            "max_tokens": 400,
            "reasoning_budget": 8,
            **fields,
        }
        status, answer = post(server, CHAT, body)
        assert status == 200, answer
        found += answer["choices"]
    return found


def calls_fit(message):
    for call in message.get("tool_calls", ()):
        name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        if not (is_call(arguments) if name == "measure" else (name, arguments) == ("stop", {})):
            return False
    return True


def test_a_schema_holds_100_times_of_100(thinker_server):
    found = choices(thinker_server, 100, response_format=FORMAT)
    assert sum(is_person(json.loads(c["message"]["content"])) for c in found) == 100
    assert {c["finish_reason"] for c in found} == {"stop"}
    assert all(c["message"]["reasoning_content"] for c in found), "what was thought before stays free"


def test_without_it_nothing_fits(thinker_server):
    found = choices(thinker_server, 10)
    assert not any("{" in (c["message"]["content"] or "")[:1] for c in found)


def test_required_calls_hold_100_times_of_100(thinker_server):
    found = choices(
        thinker_server, 100, tools=[TOOL, OTHER], tool_choice="required", parallel_tool_calls=False
    )
    assert sum(len(c["message"]["tool_calls"]) == 1 and calls_fit(c["message"]) for c in found) == 100
    assert {c["message"]["tool_calls"][0]["function"]["name"] for c in found} == {"measure", "stop"}


def test_a_schema_together_with_tools_holds_100_times_of_100(thinker_server):
    found = choices(
        thinker_server, 100, tools=[TOOL, OTHER], parallel_tool_calls=False, response_format=FORMAT
    )
    called = [c["message"] for c in found if c["message"].get("tool_calls")]
    said = [c["message"]["content"] for c in found if not c["message"].get("tool_calls")]
    assert len(called) + len(said) == 100 and called and said, "either may come"
    assert all(map(calls_fit, called)) and all(is_person(json.loads(text)) for text in said)


def test_strict_tools_hold_where_calls_are_free(thinker_server):
    """What begins like a call must be one; a model that says anything seldom begins, so its tokens are made likely."""
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    found = choices(thinker_server, 20, tools=[strict], logit_bias={"260": 12}, parallel_tool_calls=False)
    called = [c["message"] for c in found if c["message"].get("tool_calls")]
    assert called and all(map(calls_fit, called))


GRAMMARS = {
    "regex": ({"guided_regex": r"[0-9]{3}-[0-9]{4}"}, r"[0-9]{3}-[0-9]{4}"),
    "choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, r"yes|no"),
    "lark": ({"grammar": 'start: "a" B+\nB: "b" | "c"{2}'}, r"a(b|cc)+"),
    "gbnf": ({"grammar": 'root ::= "a" b+\nb ::= [x-z]'}, r"a[x-z]+"),
    "any object": ({"response_format": {"type": "json_object", "schema": {"maxProperties": 0}}}, r"\{\s*\}"),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_other_grammars(tiny_server, name):
    fields, pattern = GRAMMARS[name]
    body = {"prompt": "x", "temperature": 30, "n": 8, "seed": 1, "max_tokens": 60, **fields}
    found = post(tiny_server, TEXT, body)[1]["choices"]
    assert len({c["text"] for c in found}) > 1 or name == "any object"
    whole = [c["text"] for c in found if c["finish_reason"] == "stop"]
    assert whole and all(re.fullmatch(pattern, text) for text in whole)


TALK = {
    "messages": [{"role": "user", "content": "x"}],
    "temperature": 30,
    "seed": 3,
    "logit_bias": {str(256 + i): -100 for i in range(6)},  # nothing of its own ends thinking or the answer
}


def test_thinking_ends_at_its_budget_and_the_tokens_are_counted(thinker_server):
    body = {**TALK, "max_tokens": 60}
    usage = post(thinker_server, CHAT, {**body, "reasoning_budget": 10})[1]["usage"]
    thought = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 10 <= thought <= 14, "the budget, and the tokens that end the block"
    free = post(thinker_server, CHAT, body)[1]
    assert free["usage"]["completion_tokens_details"]["reasoning_tokens"] == 60
    assert free["choices"][0]["message"]["content"] == ""
    off = post(thinker_server, CHAT, {**body, "reasoning_effort": "none"})[1]
    assert "reasoning_content" not in off["choices"][0]["message"]


def test_stops_hold_in_content_and_in_reasoning_by_option(thinker_server):
    body = {**TALK, "max_tokens": 200}
    free = post(thinker_server, CHAT, body)[1]["choices"][0]["message"]["reasoning_content"]
    stop = free[20]
    before = free.index(stop)
    kept = post(thinker_server, CHAT, {**body, "stop": stop})[1]["choices"][0]
    assert kept["message"]["reasoning_content"] == free and kept["finish_reason"] == "length"
    cut = post(thinker_server, CHAT, {**body, "stop": stop, "stop_in_reasoning": True})[1]["choices"][0]
    assert cut["message"]["reasoning_content"] == free[:before]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", stop)
