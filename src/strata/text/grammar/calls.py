"""A model's own syntax for tool calls as a grammar, the arguments held to their schemas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata.errors import UsageError
from strata.text.chat import ToolStyle
from strata.text.chat.schema import Tool, ToolSchemas
from strata.text.grammar.sources import json_rule, literal

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
MAX_CALLS = 32  # of an answer that must call; small models repeat themselves
_TEXT = r"(?s:.*)"


@dataclass(frozen=True)
class CallRules:
    """What an answer may be: `required` calls, more than one where `parallel`, instead of them JSON of `schema`, and
    between them, where `free`, any text."""

    style: ToolStyle
    tools: Sequence[Tool]
    required: bool
    parallel: bool = True
    free: bool = False
    schema: Mapping[str, Any] | None = None


def call_grammar(rules: CallRules, special: Callable[[str], str]) -> str:
    """Lark text; `special` writes a token's text as a rule does (`GrammarCompiler.special`)."""
    if rules.style is ToolStyle.NONE or not rules.tools:
        raise UsageError("the model's template writes no tool calls")
    writer = _Writer(rules, special)
    names = [writer.call(i, tool) for i, tool in enumerate(rules.tools)]
    one = "call_open (" + " | ".join(names) + ") call_close"
    lines = [f"call: {one}", f"call_open: {special('<tool_call>')} {literal(chr(10))}"]
    lines.append(f"call_close: {literal(chr(10))} {special('</tool_call>')}")
    calls = f"call ({literal(chr(10))} call){{0,{MAX_CALLS - 1}}}" if rules.parallel else "call"
    if rules.free:
        lines += [_free(special, " | ".join(names), rules.parallel)]
    else:
        alternative = f" | {json_rule(rules.schema)}" if rules.schema is not None else ""
        lines.append(f"start: {calls}{alternative}")
    return "\n".join([*lines, *writer.lines]) + "\n"


def _free(special: Callable[[str], str], names: str, parallel: bool) -> str:
    """Text with calls in it: what begins like one must be one."""
    opening, is_token = special("<tool_call>"), special("<tool_call>").startswith("<")
    head = f"text_open: TEXT {opening}" if is_token else f"text_open[lazy]: TEXT {opening}"
    return (
        f"start: text_call{'*' if parallel else '?'} TEXT\n"
        f"text_call: text_open {literal(chr(10))} ({names}) call_close\n"
        f"{head}\nTEXT: /{_TEXT}/"
    )


class _Writer:
    """Rules of the functions, one a tool."""

    def __init__(self, rules: CallRules, special: Callable[[str], str]):
        self._rules, self._special = rules, special
        self._schemas = ToolSchemas(rules.tools)
        self.lines: list[str] = []

    def call(self, index: int, tool: Tool) -> str:
        """Adds the rule of one function; its name."""
        function = tool.get("function", tool)
        rule = f"f{index}"
        parameters = _closed(function.get("parameters") or _ANY_OBJECT)
        lenient = not function.get("strict")
        if self._rules.style is ToolStyle.JSON:
            head = literal('{"name": ' + literal(function["name"]) + ', "arguments": ')
            self.lines.append(f"{rule}: {head} {json_rule(parameters, lenient)} " + literal("}"))
        else:
            self._xml(rule, function["name"], parameters, lenient)
        return rule

    def _xml(self, rule: str, name: str, parameters: Mapping[str, Any], lenient: bool) -> None:
        required = set(parameters.get("required") or ())
        parts = [literal(f"<function={name}>\n")]
        for number, (key, schema) in enumerate(self._schemas.properties(name).items()):
            part = f"{rule}_{number}"
            self.lines += self._parameter(part, name, key, schema, parameters, lenient)
            parts.append(part if key in required else f"{part}?")
        self.lines.append(f"{rule}: {' '.join(parts)} {literal('</function>')}")

    def _parameter(
        self, rule: str, name: str, key: str, schema: Any, parameters: Mapping[str, Any], lenient: bool
    ) -> Iterator[str]:
        opening, closing = literal(f"<parameter={key}>\n"), "\n</parameter>\n"
        schema = schema if isinstance(schema, Mapping) else {}
        if "string" not in self._schemas.types(name, key):
            shared = {k: parameters[k] for k in ("$defs", "definitions") if k in parameters}
            yield f"{rule}: {opening} {json_rule({**schema, **shared}, lenient)} {literal(closing)}"
        elif texts := _texts(schema):
            yield f"{rule}: {opening} ({' | '.join(map(literal, texts))}) {literal(closing)}"
        else:
            yield f"{rule}: {opening} {rule}_text"
            yield f"{rule}_text[lazy]: /{_length(schema)}{_escape(closing)}/"


def _closed(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Only the parameters that are named, where the schema leaves it open: a model may else invent them for ever."""
    return {"additionalProperties": False, **parameters} if parameters.get("properties") else parameters


def _texts(schema: Mapping[str, Any]) -> list[str]:
    """The only texts that a value may be."""
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return (
        [value for value in allowed if isinstance(value, str) and value] if isinstance(allowed, list) else []
    )


def _length(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minLength"), schema.get("maxLength")
    if not isinstance(low, int) and not isinstance(high, int):
        return _TEXT
    return f"(?s:.{{{low if isinstance(low, int) else 0},{high if isinstance(high, int) else ''}}})"


def _escape(text: str) -> str:
    return text.replace("\n", "\\n").replace("/", "\\/")
