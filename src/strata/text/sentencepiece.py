"""SentencePiece BPE (`tokenizer.ggml.model` "llama": Llama 2, Mistral, Phi-3, Gemma 1 to 3).

Whatever spells a piece merges by the piece's *score*, the leftmost first among equals. The `tokenizers` library ranks
*pairs*: it cannot say that two pieces are equal ("ab" and "ba": "aba" is ab-a, "bab" is ba-b), and the file has no
pairs; listing them takes ten times as long as building the native merges.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from strata import _native
from strata.errors import ModelFileError
from strata.text.vocabulary import BYTE, PREFIX, Vocabulary, read_key, read_sequence

SPACE = "\u2581"  # how pieces write a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePiece:
    """Pieces with scores; a character that is no piece is spelled by byte pieces, else becomes the unknown one."""

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        self.add_bos = True
        self._prefix = SPACE if read_key(metadata, "add_space_prefix", bool, True) else ""
        byte_pieces = _byte_pieces(vocabulary)
        byte_ids = [-1] * 256
        for token_id, byte in byte_pieces.items():
            byte_ids[byte] = token_id
        self._byte_by_text = {vocabulary.tokens[i]: bytes([byte]) for i, byte in byte_pieces.items()}
        unknown = vocabulary.unknown_id
        self._pieces = _native.SentencePiece(
            vocabulary.tokens,
            _scores(metadata, len(vocabulary.tokens)),
            # Text never spells a control, unknown or byte piece, whatever it says (as in the sentencepiece library).
            [*vocabulary.special.values(), *byte_pieces],
            byte_ids,
            -1 if unknown is None else unknown,
        )

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the space in front that the file asks for."""
        return self._pieces.encode(self._prefix + text.replace(" ", SPACE))

    def token_bytes(self, token: str) -> bytes:
        """Bytes that an ordinary token spells."""
        return self._byte_by_text.get(token) or token.replace(SPACE, " ").encode("utf-8", "surrogateescape")


def _scores(metadata: Mapping[str, Any], count: int) -> list[float]:
    scores = read_sequence(metadata, "scores")
    if len(scores) != count:
        raise ModelFileError(f"{PREFIX}scores has {len(scores)} entries, tokens has {count}")
    try:
        found = np.asarray(scores, np.float32)
    except (TypeError, ValueError):
        raise ModelFileError(f"{PREFIX}scores must be numbers") from None
    if not np.isfinite(found).all():
        raise ModelFileError(f"{PREFIX}scores[{np.flatnonzero(~np.isfinite(found))[0]}] is not finite")
    return found.tolist()  # type: ignore[no-any-return]  # NumPy types it as Any


def _byte_pieces(vocabulary: Vocabulary) -> dict[int, int]:
    """Byte by id of the pieces that stand for one."""
    found = {}
    for token_id in (i for i, kind in enumerate(vocabulary.types) if kind == BYTE):
        text = vocabulary.tokens[token_id]
        match = _BYTE_PIECE.fullmatch(text)
        if match is None:
            raise ModelFileError(
                f"{PREFIX}tokens[{token_id}] is of the type byte (<0x00> to <0xFF>): {text[:20]!r}"
            )
        found[token_id] = int(match[1], 16)
    return found
