"""Grammars on a real vocabulary: what they take and refuse, calls in a model's own syntax, reasoning before them."""

import json
import subprocess
import sys

import numpy as np
import pytest

from strata.errors import FaultError, UsageError
from strata.gguf import open_model
from strata.text import Tokenizer
from strata.text.chat import OutputParser, ToolStyle, collect, describe_tools
from strata.text.grammar import (
    CallRules,
    GrammarCompiler,
    ReasoningGate,
    TokenConstraint,
    call_grammar,
    choice_grammar,
    json_grammar,
    lark_grammar,
    regex_grammar,
)

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "nothing"}},
]
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
JSON = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
STYLES = {ToolStyle.XML: XML, ToolStyle.JSON: JSON}


@pytest.fixture(scope="module")
def tokenizer(smollm2_path):
    return Tokenizer.from_metadata(open_model(smollm2_path).metadata)


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


def row_of(compiler):
    return np.zeros(-(-compiler._vocab_size // 32), np.int32)


def allows(row, token):
    return bool(row.view(np.uint32)[token // 32] >> np.uint32(token % 32) & 1)


def takes(compiler, source, text):
    """Whether a grammar takes the whole of a text, every token by its mask, and may end there."""
    grammar, row = compiler.compile(source), row_of(compiler)
    for token in compiler.encode(text):
        grammar.fill(row)
        if not allows(row, token):
            with pytest.raises(FaultError):
                grammar.accept(token)
            return False
        grammar.accept(token)
    grammar.fill(row)
    return all(allows(row, end) for end in compiler.eos_ids)


@pytest.mark.parametrize("style", STYLES)
def test_calls_in_the_models_own_syntax(compiler, style):
    good = STYLES[style]

    def check(text, **rules):
        return takes(compiler, call_grammar(CallRules(style, TOOLS, **rules), compiler.special), text)

    assert check(good, required=True) and check(f"{good}\n{good}", required=True)
    assert not check(f"{good}\n{good}", required=True, parallel=False)
    assert not check("hello", required=True) and not check("", required=True)
    for wrong in (("days", "dayz"), ("3", "three"), ("get_weather", "get_whether"), ("city", "unit")):
        assert not check(good.replace(*wrong), required=True)
    assert check(f"Let me see. {good} And on.", required=False, free=True)
    assert check("Nothing to call here.", required=False, free=True)
    assert not check(good.replace("days", "dayz"), required=False, free=True)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert check(good, required=False, schema=schema) and check('{"a": 3}', required=False, schema=schema)
    assert not check('{"b": 3}', required=False, schema=schema)
    assert not check("hello", required=False, schema=schema)


@pytest.mark.parametrize("style", STYLES)
def test_what_the_grammar_takes_the_parser_reads(compiler, style):
    parser = OutputParser(style, False, TOOLS)
    output = collect([*parser.push(STYLES[style]), *parser.finish()])
    [call] = output.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris", "days": 3})
    assert call.complete and output.content == ""


def test_values_of_the_xml_style_keep_their_bounds(compiler):
    parameters = {
        "properties": {"a": {"type": "string", "maxLength": 3}, "b": {"type": "string", "minLength": 2}},
        "required": ["a"],
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    source = call_grammar(CallRules(ToolStyle.XML, [tool], required=True), compiler.special)

    def call(**values):
        inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
        return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"

    assert takes(compiler, source, call(a="xyz", b="</par>\n<x>"))
    assert not takes(compiler, source, call(a="wxyz"))
    assert not takes(compiler, source, call(a="x", b="y"))


def test_other_sources(compiler):
    assert takes(compiler, regex_grammar(r"a+/b\/c"), "aa/b/c")
    assert not takes(compiler, regex_grammar(r"a+"), "ab")
    assert takes(compiler, choice_grammar(["yes", 'no "x"']), 'no "x"')
    assert takes(compiler, lark_grammar('root ::= "a" | "b"+'), "bb")
    assert takes(compiler, lark_grammar('start: "a" | "b"+'), "bb")
    assert takes(compiler, json_grammar(True), '{"a": [1,\n 2]}')
    assert not takes(compiler, json_grammar({"type": "object"}), "[]")
    assert not takes(compiler, json_grammar({"type": "object"}), "{" + " " * 20 + "}"), "space has bounds"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("start: nowhere", "unknown name"),
        ("start: /(/", "invalid regex"),
        ("", "Empty grammar"),
        (json_grammar({"type": "strin"}), "strin"),
        (json_grammar({"not": {}}), "not"),
        (json_grammar({"type": "string", "format": "strange"}), "strange"),
        (json_grammar({"$ref": "file:///etc/passwd"}), "does not fetch"),
    ],
)
def test_what_cannot_be_compiled_is_told_in_a_line(compiler, source, message):
    with pytest.raises(UsageError, match=message) as caught:
        compiler.compile(source)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_lenient_schemas_pass_over_what_cannot_be_held(compiler):
    strange = {"type": "string", "format": "strange"}
    assert takes(compiler, json_grammar(strange, lenient=True), '"a"')


def test_two_answers_of_one_grammar_do_not_share_their_place(compiler):
    first, second = (compiler.compile(choice_grammar(["ab"])) for _ in range(2))
    for token in compiler.encode("ab"):
        first.accept(token)
    assert first.complete and not second.complete


def run(constraint, compiler, tokens):
    """Feeds tokens, each by its mask; those that were forced before it come first."""
    row, said = row_of(compiler), []
    for token in tokens:
        constraint.fill(row)
        while (
            row.view(np.uint8).any()
            and np.unpackbits(row.view(np.uint8)).sum() == 1
            and not allows(row, token)
        ):
            forced = int(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))[0])
            constraint.accept(forced)
            said.append(forced)
            constraint.fill(row)
        assert allows(row, token), token
        constraint.accept(token)
        said.append(token)
    constraint.fill(row)
    return said, row


def test_reasoning_is_free_and_the_grammar_begins_behind_it(compiler, tokenizer):
    gate = ReasoningGate(tokenizer, starts_in_thinking=True)
    constraint = TokenConstraint(compiler, compiler.compile(choice_grammar(["yes", "no"])), gate)
    row = row_of(compiler)
    constraint.fill(row)
    assert not any(allows(row, end) for end in compiler.eos_ids), "the answer may not end in its reasoning"
    thought = compiler.encode("Hm, `</think>` is how it ends.\n</think>")
    said, row = run(constraint, compiler, [*thought, *compiler.encode("yes")])
    assert tokenizer.decode(said).endswith("</think>\n\nyes"), (
        "the line breaks that templates write are forced"
    )
    assert allows(row, tokenizer.eos_id)
    with pytest.raises(FaultError):
        constraint.accept(compiler.encode("no")[0])


def test_reasoning_ends_at_its_budget(compiler, tokenizer):
    gate = ReasoningGate(tokenizer, starts_in_thinking=True, budget=4)
    constraint = TokenConstraint(compiler, None, gate)
    said, row = run(constraint, compiler, [*compiler.encode(" a b c d"), *compiler.encode("Answer")])
    assert tokenizer.decode(said) == " a b c d\n</think>\n\nAnswer"
    assert (row == -1).all(), "and anything may follow"


def test_llguidance_is_imported_where_a_grammar_is_compiled_and_not_before():
    code = "import sys, strata.text.grammar; assert 'llguidance' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_templates_without_tools_get_them_described():
    messages = [
        {"role": "user", "content": "Sum?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_call_id": "x", "content": "42"},
    ]
    plain = describe_tools(messages, TOOLS)
    assert [m["role"] for m in plain] == ["system", "user", "assistant", "user"]
    assert '"get_weather"' in plain[0]["content"]
    parser = OutputParser(ToolStyle.JSON, False, None)
    [call] = collect([*parser.push(plain[2]["content"]), *parser.finish()]).tool_calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 1})
    assert plain[3]["content"] == "<tool_response>\n42\n</tool_response>"
    own = describe_tools([{"role": "system", "content": "Be brief."}, *messages], TOOLS)
    assert own[0]["content"].startswith("Be brief.\n\n") and len(own) == 4
