"""What an answer must be: `response_format`, and the ways in which other engines' clients ask for the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from strata.errors import UsageError
from strata.text.grammar import choice_grammar, json_grammar, lark_grammar, regex_grammar

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Format:
    """A grammar in Lark, and the schema behind it where it is one."""

    grammar: str | None = None
    schema: Mapping[str, Any] | None = None

    @classmethod
    def of_schema(cls, schema: Any, lenient: bool = False) -> "Format":
        """JSON of a schema."""
        if not isinstance(schema, Mapping | bool):
            raise UsageError("the JSON schema must be an object")
        full = schema if isinstance(schema, Mapping) else {} if schema else {"not": {}}
        return cls(json_grammar(full, lenient), full)


def read_format(response_format: Mapping[str, Any] | None, extra: Mapping[str, Any]) -> Format:
    """The one format that was asked for; UsageError for two, or one that is not known."""
    found = [_response_format(response_format)] if response_format is not None else []
    found += [_READERS[key](extra[key]) for key in _FIELDS if extra.get(key) is not None]
    asked = [f for f in found if f.grammar is not None]
    if len(asked) > 1:
        raise UsageError("more than one format of the answer was asked for")
    return asked[0] if asked else Format()


def _response_format(stated: Mapping[str, Any]) -> Format:
    kind = stated.get("type")
    if kind == "text":
        return Format()
    if kind == "json_object":
        schema = stated.get("schema")
        if schema is not None and not isinstance(schema, Mapping):
            raise UsageError("response_format.schema must be an object")
        return Format.of_schema({**_ANY_OBJECT, **(schema or {})})
    if kind == "json_schema":
        inner = stated.get("json_schema", stated)
        if not isinstance(inner, Mapping) or "schema" not in inner:
            raise UsageError("response_format.json_schema.schema is missing")
        return Format.of_schema(inner["schema"], lenient=inner.get("strict") is False)
    if kind in ("grammar", "regex") and isinstance(stated.get(kind), str):
        return _READERS[kind](stated[kind])
    raise UsageError(
        f"response_format.type is {kind!r}; it must be text, json_object, json_schema, grammar or regex"
    )


def _structured(stated: Any) -> Format:
    if not isinstance(stated, Mapping):
        raise UsageError("structured_outputs must be an object")
    if stated.get("json_object"):
        return Format.of_schema(_ANY_OBJECT)
    found = [
        _READERS[key](stated[key])
        for key in ("json", "regex", "choice", "grammar")
        if stated.get(key) is not None
    ]
    if len(found) != 1:
        raise UsageError("structured_outputs needs one of json, regex, choice, grammar, json_object")
    return found[0]


def _text(make: Callable[[str], str]) -> Callable[[Any], Format]:
    def read(value: Any) -> Format:
        if not isinstance(value, str):
            raise UsageError("a grammar or regular expression must be text")
        return Format(make(value))

    return read


def _choice(value: Any) -> Format:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise UsageError("choice must be a list of non-empty strings")
    return Format(choice_grammar(value))


_READERS: dict[str, Callable[[Any], Format]] = {
    "grammar": _text(lark_grammar),
    "json_schema": Format.of_schema,
    "json": Format.of_schema,
    "regex": _text(regex_grammar),
    "choice": _choice,
    "structured_outputs": _structured,
    "guided_json": Format.of_schema,
    "guided_regex": _text(regex_grammar),
    "guided_choice": _choice,
    "guided_grammar": _text(lark_grammar),
}


# Fields of a request: llama.cpp's names, SGLang's, vLLM's.
_FIELDS = (
    "grammar",
    "json_schema",
    "regex",
    "structured_outputs",
    *(key for key in _READERS if "guided" in key),
)
