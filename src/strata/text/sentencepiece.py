"""SentencePiece BPE (`tokenizer.ggml.model` "llama": Llama 2, Mistral, Phi-3, Gemma 1 to 3).

The `tokenizers` library merges by the rank of a *pair*; here whatever spells a piece merges by the piece's *score*,
the leftmost first among equals. Vocabularies have equal scores (runs of spaces in Llama 2's), which ranks cannot say,
and pairs are not in the file: listing them takes longer than everything else. So the merges are native.
"""

import re
from collections.abc import Mapping
from typing import Any

from strata import _native
from strata.errors import ModelFileError
from strata.text.vocabulary import BYTE, CONTROL, PREFIX, UNKNOWN, Vocabulary, read_key, read_sequence

SPACE = "\u2581"  # how pieces write a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class SentencePiece:
    """Pieces with scores; characters that are no piece are spelled by byte pieces, else become the unknown one."""

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        tokens, types = vocabulary.tokens, vocabulary.types
        scores = [float(score) for score in read_sequence(metadata, "scores")]
        if len(scores) != len(tokens):
            raise ModelFileError(f"{PREFIX}scores has {len(scores)} entries, tokens has {len(tokens)}")
        self.add_bos = True
        self._prefix = SPACE if read_key(metadata, "add_space_prefix", bool, True) else ""
        self._bytes = _byte_pieces(tokens, types)
        byte_ids = [-1] * 256
        for token, byte in self._bytes.items():
            byte_ids[byte] = vocabulary.ids[token]
        unknown = vocabulary.unknown_id
        # Text never spells control, unknown or byte pieces, whatever it says (as in the sentencepiece library).
        kept = [i for token, i in vocabulary.ids.items() if token not in self._bytes]
        self._pieces = _native.SentencePiece(
            [tokens[i] for i in kept],
            kept,
            [scores[i] for i in kept],
            byte_ids,
            -1 if unknown is None else unknown,
        )

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the space in front that the file asks for."""
        return self._pieces.encode(self._prefix + text.replace(" ", SPACE))

    def token_bytes(self, token: str) -> bytes:
        """Bytes that an ordinary token spells."""
        byte = self._bytes.get(token)
        return token.replace(SPACE, " ").encode("utf-8", "surrogateescape") if byte is None else bytes([byte])


def _byte_pieces(tokens: list[str], types: list[int]) -> dict[str, int]:
    """Value by text of the pieces that stand for one byte."""
    found = {tokens[i]: _BYTE_PIECE.fullmatch(tokens[i]) for i, kind in enumerate(types) if kind == BYTE}
    for token, match in found.items():
        if match is None:
            raise ModelFileError(f"{PREFIX}tokens: {token[:20]!r} has the type of a byte, which are <0x00> to <0xFF>")
    return {token: int(match[1], 16) for token, match in found.items() if match}
