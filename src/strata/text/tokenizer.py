"""Text to token ids and back, from the metadata of a GGUF file (byte-level BPE)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers
from tokenizers import models, normalizers

from strata.errors import ModelFileError, UnsupportedError, UsageError
from strata.text.byte_level import token_text_to_bytes
from strata.text.pretokenizers import build_splitter, find_pretokenizer
from strata.text.vocabulary import PREFIX, Vocabulary, read_key, read_merges, read_vocabulary

# Values of `tokenizer.ggml.model`; SentencePiece ("llama") would be a second builder beside `_build_bpe`.
_MODELS = ("gpt2",)


class Tokenizer:
    """Encodes and decodes; immutable after construction, safe to share between threads.

    A byte that has no token is dropped, as the models' own tokenizers do (SmolLM2 has none for U+0004).
    """

    def __init__(
        self, vocabulary: Vocabulary, bpe: tokenizers.Tokenizer, add_bos: bool, add_eos: bool
    ) -> None:
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.eos_ids
        self.special_ids = vocabulary.control
        self.add_bos = add_bos
        self.add_eos = add_eos
        self._tokens = vocabulary.tokens
        self._bpe = bpe
        self._verbatim = vocabulary.special | vocabulary.user_defined
        self._verbatim_ids = frozenset(self._verbatim.values())
        self._split_special = _alternation(self._verbatim)
        self._split_defined = _alternation(vocabulary.user_defined)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """From `tokenizer.ggml.*`; ModelFileError on bad values, UnsupportedError on an unknown kind."""
        model = read_key(metadata, "model", str)
        if model is None:
            raise ModelFileError(f"{PREFIX}model is missing: the file has no tokenizer")
        if model not in _MODELS:
            raise UnsupportedError(
                f"tokenizer model {model!r} is not supported (supported: {', '.join(_MODELS)})"
            )
        name = read_key(metadata, "pre", str)
        if name is None:
            raise ModelFileError(f"{PREFIX}pre is missing: the file does not say how its text is cut")
        pre = find_pretokenizer(name)
        vocabulary = read_vocabulary(metadata)
        bpe = tokenizers.Tokenizer(_build_bpe(vocabulary.ids, read_merges(metadata), pre.ignore_merges))
        if pre.nfc:
            bpe.normalizer = normalizers.NFC()
        bpe.pre_tokenizer = build_splitter(pre, read_key(metadata, "add_space_prefix", bool, False))
        add_bos = read_key(metadata, "add_bos_token", bool, pre.add_bos)
        add_eos = read_key(metadata, "add_eos_token", bool, False)
        for flag, token_id, key in ((add_bos, vocabulary.bos_id, "bos"), (add_eos, vocabulary.eos_id, "eos")):
            if flag and token_id is None:
                raise ModelFileError(f"{PREFIX}{key}_token_id is missing and add_{key}_token asks for it")
        return cls(vocabulary, bpe, add_bos, add_eos)

    def encode(self, text: str, parse_special: bool = True, add_special: bool = True) -> list[int]:
        """Token ids. Control tokens are recognised only with `parse_special`, user-defined ones always.

        `add_special` adds the begin and end tokens that the file asks for. UsageError on a lone surrogate.
        """
        splitter = self._split_special if parse_special else self._split_defined
        ids: list[int] = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        for index, piece in enumerate(splitter.split(text) if splitter else [text]):
            if index % 2:  # the splitter's group: a recognised token
                ids.append(self._verbatim[piece])
            elif piece:
                ids.extend(self._encode_plain(piece))
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of the ids; invalid UTF-8 becomes U+FFFD. `skip_special` leaves control tokens out."""
        kept = (i for i in ids if not (skip_special and i in self.special_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token adds to the text; UsageError outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise UsageError(f"token id {token_id} is outside the vocabulary of {self.vocab_size}")
        token = self._tokens[token_id]
        if token_id in self._verbatim_ids:
            return token.encode("utf-8", "surrogateescape")
        return token_text_to_bytes(token)

    def _encode_plain(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the text is not valid UTF-8: lone surrogate at character {error.start}"
            ) from None
        return self._bpe.encode(text, add_special_tokens=False).ids


def _build_bpe(ids: dict[str, int], merges: list[tuple[str, str]], ignore_merges: bool) -> models.BPE:
    """The merge model. Merges of absent tokens never apply and the library refuses them: they go."""
    try:
        return models.BPE(vocab=ids, merges=merges, ignore_merges=ignore_merges)
    except Exception:  # the library raises a bare Exception
        known = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
        return models.BPE(vocab=ids, merges=known, ignore_merges=ignore_merges)


def _alternation(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Pattern that finds the leftmost, then longest, of the texts; None where there are none."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None
