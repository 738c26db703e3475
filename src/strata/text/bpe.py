"""Byte-level BPE (`tokenizer.ggml.model` "gpt2") on the `tokenizers` library."""

import unicodedata
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import models

from strata.errors import ModelFileError
from strata.text.byte_level import token_text_to_bytes
from strata.text.pretokenizers import build_splitter, find_pretokenizer
from strata.text.vocabulary import PREFIX, Vocabulary, read_key, read_merges


class ByteLevelBpe:
    """Every byte is a character of the vocabulary's alphabet; merges follow their order in the file."""

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        name = read_key(metadata, "pre", str)
        if name is None:
            raise ModelFileError(f"{PREFIX}pre is missing: the file does not say how its text is cut")
        pre = find_pretokenizer(name)
        self.add_bos = pre.add_bos
        self._nfc = pre.nfc
        self._bpe = tokenizers.Tokenizer(
            _build_model(vocabulary.ids, read_merges(metadata), pre.ignore_merges)
        )
        self._bpe.pre_tokenizer = build_splitter(pre, read_key(metadata, "add_space_prefix", bool, False))

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        composed = unicodedata.normalize("NFC", text) if self._nfc else text
        return self._bpe.encode(composed, add_special_tokens=False).ids

    def token_bytes(self, token: str) -> bytes:
        """Bytes that an ordinary token spells."""
        return token_text_to_bytes(token)


def _build_model(ids: dict[str, int], merges: list[tuple[str, str]], ignore_merges: bool) -> models.BPE:
    """The merge model. Merges of absent tokens never apply and the library refuses them: they go."""
    try:
        return models.BPE(vocab=ids, merges=merges, ignore_merges=ignore_merges)
    except Exception:  # the library raises a bare Exception
        known = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
        return models.BPE(vocab=ids, merges=known, ignore_merges=ignore_merges)
