"""Byte-level BPE (`tokenizer.ggml.model` "gpt2").

The `tokenizers` library cuts the text, which takes Unicode regular expressions. The merges are native: the library
takes a vocabulary only as Python's own objects, and needs three times as long to build one of 250,000 tokens.
"""

import unicodedata
from collections.abc import Mapping
from typing import Any

from strata import _native
from strata.errors import ModelFileError
from strata.text.byte_level import BYTE_TO_CHAR, token_text_to_bytes
from strata.text.pretokenizers import build_splitter, find_pretokenizer
from strata.text.vocabulary import PREFIX, Vocabulary, read_key, read_texts


class ByteLevelBpe:
    """Every byte is a character of the vocabulary's alphabet; merges follow their order in the file."""

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        name = read_key(metadata, "pre", str)
        if name is None:
            raise ModelFileError(f"{PREFIX}pre is missing: the file does not say how its text is cut")
        pre = find_pretokenizer(name)
        self.add_bos = pre.add_bos
        self._nfc = pre.nfc
        self._space_prefix = read_key(metadata, "add_space_prefix", bool, False)
        self._splitter = build_splitter(pre)
        self._merges = _native.BytePairs(
            vocabulary.tokens,
            read_texts(metadata, "merges"),
            [BYTE_TO_CHAR[byte] for byte in range(256)],
            list(vocabulary.special.values()),
            pre.ignore_merges,
        )

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        if self._nfc:
            text = unicodedata.normalize("NFC", text)
        if self._space_prefix and not text.startswith(" "):
            text = " " + text
        return self._merges.encode([piece for piece, _ in self._splitter.pre_tokenize_str(text)])

    def token_bytes(self, token: str) -> bytes:
        """Bytes that an ordinary token spells."""
        return token_text_to_bytes(token)
