"""Vocabulary of a GGUF file's `tokenizer.ggml.*` keys, checked; knows nothing of how text is cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from strata.errors import ModelFileError

PREFIX = "tokenizer.ggml."

# Values of `token_type` that matter here (llama.cpp's llama_token_type).
CONTROL, USER_DEFINED = 3, 4

# Control tokens that end a turn where a file's own keys name only one of them.
_TURN_ENDS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>"}
    | {"<end_of_turn>", "</s>", "<EOT>"}
)


@dataclass(frozen=True)
class Vocabulary:
    """Token texts by id, and the ids with a meaning of their own."""

    tokens: list[str] = field(repr=False)
    ids: dict[str, int] = field(repr=False)
    control: frozenset[int]
    special: dict[str, int]  # text -> id of control tokens
    user_defined: dict[str, int]  # text -> id of tokens always recognised in text
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


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Tokens, types and special ids; ModelFileError on duplicates, wrong lengths and ids out of range."""
    tokens = read_texts(metadata, "tokens")
    if not tokens:
        raise ModelFileError(f"{PREFIX}tokens is empty")
    ids = _ids_by_text(tokens)
    types = _token_types(metadata, len(tokens))
    control = [index for index, kind in enumerate(types) if kind == CONTROL]
    defined = [index for index, kind in enumerate(types) if kind == USER_DEFINED]
    bos, eos, eot, eom = (_token_id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom"))
    ends = {index for index in control if tokens[index] in _TURN_ENDS} | {eos, eot, eom}
    return Vocabulary(
        tokens=tokens,
        ids=ids,
        control=frozenset(control),
        special={tokens[index]: index for index in control if tokens[index]},
        user_defined={tokens[index]: index for index in defined if tokens[index]},
        bos_id=bos,
        eos_id=eos,
        eos_ids=frozenset(index for index in ends if index is not None),
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


def _token_id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    value: int | None = read_key(metadata, f"{name}_token_id", int)
    if value is not None and not 0 <= value < count:
        raise ModelFileError(f"{PREFIX}{name}_token_id {value} is outside the vocabulary of {count}")
    return value
