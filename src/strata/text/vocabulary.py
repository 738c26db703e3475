"""Vocabulary of a GGUF file's `tokenizer.ggml.*` keys, checked; knows nothing of how text is cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from strata.errors import ModelFileError

PREFIX = "tokenizer.ggml."

# Values of `token_type` that matter here (llama.cpp's llama_token_type).
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6

# Control tokens that end a turn where a file's own keys name only one of them.
_TURN_ENDS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"}
    | {"<end_of_turn>", "</s>", "<EOT>"}
)


_NAMED = ("bos", "eos", "eot", "eom", "unknown")


@dataclass(frozen=True)
class Vocabulary:
    """Token texts by id, and the ids with a meaning of their own."""

    tokens: list[str] = field(repr=False)
    types: list[int] = field(repr=False)  # empty where the file has none
    special: dict[str, int]  # text -> id of control and unknown tokens
    user_defined: dict[str, int]  # text -> id of tokens always recognised in text
    unknown_id: int | None
    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]


def read_key(metadata: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """Value of `tokenizer.ggml.<name>`, a str, int or bool, or the default; else ModelFileError."""
    value = metadata.get(PREFIX + name)
    if value is None:
        return default
    plain = value.item() if hasattr(value, "item") and not isinstance(value, str) else value
    if not isinstance(plain, kind) or (kind is int and isinstance(plain, bool)):
        raise ModelFileError(f"{PREFIX}{name} must be {kind.__name__}, got {type(plain).__name__}")
    return plain


def read_sequence(metadata: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Array value of `tokenizer.ggml.<name>`; ModelFileError where it is missing or not an array."""
    value = metadata.get(PREFIX + name)
    if value is None:
        raise ModelFileError(f"{PREFIX}{name} is missing")
    if isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise ModelFileError(f"{PREFIX}{name} must be an array, got {type(value).__name__}")
    return value  # type: ignore[no-any-return]  # lazy arrays of the reader and NumPy arrays share no base class


def read_texts(metadata: Mapping[str, Any], name: str) -> list[str]:
    """Array of strings `tokenizer.ggml.<name>` as a list."""
    texts = list(read_sequence(metadata, name))
    if not set(map(type, texts)) <= {str}:
        index = next(index for index, text in enumerate(texts) if type(text) is not str)
        raise ModelFileError(f"{PREFIX}{name}[{index}] must be a string, got {type(texts[index]).__name__}")
    return texts


def read_vocabulary(
    metadata: Mapping[str, Any], defaults: Mapping[str, int] = MappingProxyType({})
) -> Vocabulary:
    """Tokens, types and special ids; ModelFileError on wrong lengths and ids out of range.

    `defaults` are ids (`bos`, `eos`, `unknown`) where the file names none.
    """
    tokens = read_texts(metadata, "tokens")
    if not tokens:
        raise ModelFileError(f"{PREFIX}tokens is empty")
    types = _token_types(metadata, len(tokens))
    named = {name: _token_id(metadata, name, len(tokens), defaults.get(name)) for name in _NAMED}
    ends = {i for name in ("eos", "eot", "eom") if (i := named[name]) is not None}
    defined = {tokens[i]: i for i, kind in enumerate(types) if kind == USER_DEFINED and tokens[i]}
    special = {tokens[i]: i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN) and tokens[i]}
    # Some files call the end of a turn user-defined. Text could then end a turn, so it is taken for what it is.
    for text in [text for text, i in defined.items() if text in _TURN_ENDS or i in ends]:
        special[text] = defined.pop(text)
    return Vocabulary(
        tokens=tokens,
        types=types,
        special=special,
        user_defined=defined,
        unknown_id=named["unknown"],
        bos_id=named["bos"],
        eos_id=named["eos"],
        eos_ids=frozenset(ends | {i for text, i in special.items() if text in _TURN_ENDS}),
    )


def _token_types(metadata: Mapping[str, Any], count: int) -> list[int]:
    if metadata.get(PREFIX + "token_type") is None:
        return []
    types = read_sequence(metadata, "token_type")
    if len(types) != count:
        raise ModelFileError(f"{PREFIX}token_type has {len(types)} entries, tokens has {count}")
    return types.tolist() if hasattr(types, "tolist") else list(types)


def _token_id(metadata: Mapping[str, Any], name: str, count: int, default: int | None) -> int | None:
    value: int | None = read_key(metadata, f"{name}_token_id", int, default)
    if value is not None and not 0 <= value < count:
        raise ModelFileError(f"{PREFIX}{name}_token_id {value} is outside the vocabulary of {count}")
    return value
