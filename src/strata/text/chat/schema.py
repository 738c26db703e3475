"""What a tool's JSON schema says about its parameters: which values are text, and what the others are."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Tool: TypeAlias = Mapping[str, Any]

_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_MAX_DEPTH = 8  # of references and alternatives


class ToolSchemas:
    """Functions offered, by name; with `tools` None nothing is known of any function."""

    def __init__(self, tools: Sequence[Tool] | None) -> None:
        self.given = tools is not None
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools or ():
            function = tool.get("function", tool)
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                self._parameters[function["name"]] = _mapping(function.get("parameters"))

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def properties(self, name: str) -> Mapping[str, Any]:
        """Schemas of a function's parameters; empty where nothing is known."""
        return _mapping(self._parameters.get(name, {}).get("properties"))

    def types(self, name: str, key: str) -> frozenset[str]:
        """JSON types that a parameter may have: only "string" where nothing is known of it."""
        properties = self.properties(name)
        if key not in properties:
            return frozenset({"string"})
        return frozenset(_types(properties[key], self._parameters[name], 0)) & _ALL_TYPES or _ALL_TYPES


def to_json(text: str, types: frozenset[str]) -> str:
    """JSON text of a parameter's raw text: a value of the first type that fits, else a string."""
    candidate = text.strip()
    for attempt in (candidate, candidate.lower()):
        try:
            value = json.loads(attempt)
        except (ValueError, RecursionError):
            continue
        if _type_names(value) & (types - {"string"}):
            return attempt
        if isinstance(value, float) and value.is_integer() and "integer" in types:
            return str(int(value))
    return json.dumps(text, ensure_ascii=False)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Types named by a schema; all where it leaves them open."""
    if depth > _MAX_DEPTH or not isinstance(schema, Mapping):
        yield from _ALL_TYPES
    elif "type" in schema:
        named = [schema["type"]] if isinstance(schema["type"], str) else _list(schema["type"])
        yield from (name for name in named if isinstance(name, str))
    elif isinstance(schema.get("$ref"), str):
        yield from _types(_resolve(schema["$ref"], root), root, depth + 1)
    elif "enum" in schema or "const" in schema:
        for value in _list(schema.get("enum", [schema.get("const")])):
            yield from _type_names(value)
    else:
        options = [o for k in ("anyOf", "oneOf", "allOf") for o in _list(schema.get(k))]
        for option in options or [None]:
            yield from _types(option, root, depth + 1)


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def _type_names(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    names = {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return frozenset({names[type(value)]})


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
