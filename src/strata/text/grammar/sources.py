"""Grammars in llguidance's Lark dialect, made from what clients send: schemas, expressions, choices, grammars."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strata.errors import UsageError

MAX_SOURCE = 256 * 1024  # characters of one schema or grammar
# Between JSON tokens: one space, or a line break and its indentation. Bounded, so that a model cannot pad for ever.
WHITESPACE = r"[ ]|\n[ \t]{0,16}"


def json_rule(schema: Mapping[str, Any] | bool, lenient: bool = False) -> str:
    """A rule's body for JSON of this schema; `lenient` passes over keywords that cannot be enforced."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    options = {"whitespace_pattern": WHITESPACE, "lenient": lenient}
    text = json.dumps({**schema, "x-guidance": options})
    if len(text) > MAX_SOURCE:
        raise UsageError(f"the JSON schema has {len(text):,} characters; at most {MAX_SOURCE:,} are taken")
    return f"%json {text}"


def json_grammar(schema: Mapping[str, Any] | bool, lenient: bool = False) -> str:
    """JSON of this schema and nothing else."""
    return f"start: {json_rule(schema, lenient)}\n"


def regex_grammar(pattern: str) -> str:
    """Text that the whole of `pattern` matches (Rust's regex syntax)."""
    _check_length("regex", pattern)
    return f"start: /{_in_slashes(pattern)}/\n"


def choice_grammar(choices: Sequence[str]) -> str:
    """One of the texts."""
    if not choices or "" in choices:
        raise UsageError("choice must be a list of non-empty strings")
    _check_length("choice", "".join(choices))
    return "start: " + " | ".join(map(literal, choices)) + "\n"


def lark_grammar(text: str) -> str:
    """A grammar as clients write it: Lark, or GBNF as llama.cpp takes it."""
    _check_length("grammar", text)
    if "::=" not in text:
        return text
    from llguidance.gbnf_to_lark import any_to_lark  # noqa: PLC0415  (llguidance only where it is used)

    try:
        return str(any_to_lark(text))
    except Exception as error:  # the converter raises whatever its parser meets
        raise UsageError(f"grammar: not valid GBNF: {_one_line(error)}") from None


def literal(text: str) -> str:
    """Text as a Lark string."""
    return json.dumps(text, ensure_ascii=False)


def _in_slashes(pattern: str) -> str:
    """A pattern as it stands between slashes: its own slashes escaped, where they are not already."""
    parts, escaped = [], False
    for char in pattern:
        parts.append("\\/" if char == "/" and not escaped else "\\n" if char == "\n" else char)
        escaped = char == "\\" and not escaped
    return "".join(parts)


def _check_length(name: str, text: str) -> None:
    if not text:
        raise UsageError(f"{name} is empty")
    if len(text) > MAX_SOURCE:
        raise UsageError(f"{name} has {len(text):,} characters; at most {MAX_SOURCE:,} are taken")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
