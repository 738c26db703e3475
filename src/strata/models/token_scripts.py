"""Which script each token of a file's vocabulary is written in, from its text alone."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.gguf import ModelFile

# First code points of ranges (Unicode's blocks, put together coarsely), and the script until the next one.
_RANGES: tuple[tuple[int, str], ...] = (
    (0x0000, "symbols"), (0x0041, "latin"), (0x005B, "symbols"), (0x0061, "latin"), (0x007B, "symbols"),
    (0x00C0, "accented"), (0x0250, "other"), (0x0370, "greek"), (0x0400, "cyrillic"), (0x0530, "other"),
    (0x0590, "hebrew"), (0x0600, "arabic"), (0x0700, "other"), (0x0900, "indic"), (0x0E00, "thai"),
    (0x0E80, "other"), (0x1100, "hangul"), (0x1200, "other"), (0x1E00, "accented"), (0x1F00, "greek"),
    (0x2000, "symbols"), (0x2E80, "han"), (0x3000, "symbols"), (0x3040, "kana"), (0x3100, "han"),
    (0x3130, "hangul"), (0x3190, "han"), (0xA000, "other"), (0xAC00, "hangul"), (0xD7B0, "other"),
    (0xF900, "han"), (0xFB00, "other"), (0xFF00, "symbols"), (0x10000, "other"), (0x1F000, "symbols"),
    (0x20000, "han"), (0x32000, "other"),
)  # fmt: skip
SCRIPTS = tuple(sorted({name for _, name in _RANGES} | {"bytes", "special"}))
EVERYWHERE = ("symbols", "bytes", "special")  # part of text in any script
GROUPS = {
    "english": ("latin",),
    "code": ("latin",),
    "cjk": ("han", "kana", "hangul"),
    "chinese": ("han",),
    "japanese": ("han", "kana"),
    "korean": ("hangul",),
}
_STARTS = np.array([start for start, _ in _RANGES])


def script_of(text: str) -> str:
    """Of the first character that has one; symbols where none has."""
    for character in text:
        name = _RANGES[int(np.searchsorted(_STARTS, ord(character), side="right")) - 1][1]
        if name != "symbols":
            return name
    return "symbols"


@lru_cache(maxsize=2)
def token_scripts(file: ModelFile) -> NDArray[np.int8] | None:
    """The place in SCRIPTS of every token; None where the file has no vocabulary."""
    tokens: Any = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is None or not len(tokens):
        return None
    kinds: Any = file.metadata.get("tokenizer.ggml.token_type")
    byte_level = file.get("tokenizer.ggml.model", str, "") == "gpt2"
    types: Sequence[int] = [1] * len(tokens) if kinds is None else [int(kind) for kind in kinds]
    place = {name: i for i, name in enumerate(SCRIPTS)}
    found = [
        place[_OF_KIND.get(kind) or _script(text, byte_level)]
        for text, kind in zip(tokens, types, strict=True)
    ]
    return np.array(found, np.int8)


_LETTER = re.compile("[A-Za-z]")
# Of `tokenizer.ggml.token_type`: control, user-defined, unused; byte.
_OF_KIND = {3: "special", 4: "special", 5: "special", 6: "bytes"}


def _script(token: str, byte_level: bool) -> str:
    word = token.lstrip("ĠĊ▁")  # a space or a line's end before it
    if word.isascii():
        return "latin" if _LETTER.search(word) else "symbols"
    if not byte_level:
        return script_of(token.replace("▁", " "))
    try:
        return script_of(bytes(_byte_of()[c] for c in token).decode("utf-8"))
    except KeyError:
        return script_of(token)
    except UnicodeDecodeError:
        return "bytes"


@lru_cache(maxsize=1)
def _byte_of() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones stand for themselves, the others come after 255."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(rest)}
