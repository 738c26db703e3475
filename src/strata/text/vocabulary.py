"""Vocabulary of a GGUF file's `tokenizer.ggml.*` keys, checked; knows nothing of how text is cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
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
    ids: dict[str, int] = field(repr=False)  # text -> id of what merges may form: all but `special`
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


def read_vocabulary(metadata: Mapping[str, Any], defaults: Mapping[str, int] = MappingProxyType({})) -> Vocabulary:
    """Tokens, types and special ids; ModelFileError on duplicates, wrong lengths and ids out of range.

    `defaults` are ids (`bos`, `eos`, `unknown`) where the file names none.
    """
    tokens = read_texts(metadata, "tokens")
    if not tokens:
        raise ModelFileError(f"{PREFIX}tokens is empty")
    ids = _ids_by_text(tokens)
    types = _token_types(metadata, len(tokens))
    named = {name: _token_id(metadata, name, len(tokens), defaults.get(name)) for name in _NAMED}
    ends = {named[name] for name in ("eos", "eot", "eom")} - {None}
    defined = {tokens[i]: i for i, kind in enumerate(types) if kind == USER_DEFINED and tokens[i]}
    special = {tokens[i]: i for i, kind in enumerate(types) if kind in (CONTROL, UNKNOWN) and tokens[i]}
    # Some files call the end of a turn user-defined. Text could then end a turn, so it is taken for what it is.
    for text in [text for text, i in defined.items() if text in _TURN_ENDS or i in ends]:
        special[text] = defined.pop(text)
    for text in special:
        del ids[text]
    return Vocabulary(
        tokens=tokens,
        types=types,
        ids=ids,
        special=special,
        user_defined=defined,
        unknown_id=named["unknown"],
        bos_id=named["bos"],
        eos_id=named["eos"],
        eos_ids=frozenset({i for text, i in special.items() if text in _TURN_ENDS} | ends),
    )


def read_merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of `tokenizer.ggml.merges`, best first."""
    merges = read_texts(metadata, "merges")
    if not set(map(str.count, merges, repeat(" "))) <= {1}:
        index = next(index for index, merge in enumerate(merges) if merge.count(" ") != 1)
        raise ModelFileError(
            f"{PREFIX}merges[{index}] must be two tokens and a space: {merges[index][:40]!r}"
        )
    # One split of all the lines: a vocabulary has 250,000 of them.
    halves = " ".join(merges).split(" ") if merges else []
    return list(zip(halves[0::2], halves[1::2], strict=True))


def _ids_by_text(tokens: list[str]) -> dict[str, int]:
    """Ids by token text. Empty texts are padding and may repeat; any other repeat is an error."""
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    empty = tokens.count("")
    if len(ids) != len(tokens) - max(empty - 1, 0):
        first = next(index for index, token in enumerate(tokens) if token and ids[token] != index)
        raise ModelFileError(f"{PREFIX}tokens[{first}] and [{ids[tokens[first]]}] are both {tokens[first]!r}")
    ids.pop("", None)
    return ids


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
