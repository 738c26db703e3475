"""Text to token ids and back, from the metadata of a GGUF file."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol

from strata.errors import ModelFileError, UnsupportedError, UsageError
from strata.text.bpe import ByteLevelBpe
from strata.text.sentencepiece import SentencePiece
from strata.text.verbatim import Verbatim
from strata.text.vocabulary import PREFIX, Vocabulary, read_key, read_vocabulary


class Coder(Protocol):
    """What differs between kinds of tokenizer: text without special tokens to ids, and a token's bytes."""

    @property
    def add_bos(self) -> bool:
        """Whether a begin token is added where the file does not say."""

    def encode(self, text: str) -> list[int]: ...

    def token_bytes(self, token: str) -> bytes: ...


# By `tokenizer.ggml.model`: the coder, and special ids where the file names none (sentencepiece's own defaults).
_MODELS: dict[str, tuple[type[ByteLevelBpe] | type[SentencePiece], dict[str, int]]] = {
    "gpt2": (ByteLevelBpe, {}),
    "llama": (SentencePiece, {"unknown": 0, "bos": 1, "eos": 2}),
}


class Tokenizer:
    """Encodes and decodes; immutable after construction, safe to share between threads.

    A byte that has no token is dropped, as the models' own tokenizers do (SmolLM2 has none for U+0004).
    """

    def __init__(self, vocabulary: Vocabulary, coder: Coder, add_bos: bool, add_eos: bool) -> None:
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.eos_ids
        self.special_ids = frozenset(vocabulary.special.values())
        self.add_bos = add_bos
        self.add_eos = add_eos
        self._tokens = vocabulary.tokens
        self._coder = coder
        self._verbatim = vocabulary.special | vocabulary.user_defined
        self._verbatim_ids = frozenset(self._verbatim.values())
        self._defined = vocabulary.user_defined

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
        build, defaults = _MODELS[model]
        vocabulary = read_vocabulary(metadata, defaults)
        try:
            coder = build(metadata, vocabulary)
        except ValueError as error:  # what the native side found wrong
            raise ModelFileError(f"{PREFIX}{error}") from None
        add_bos = read_key(metadata, "add_bos_token", bool, coder.add_bos)
        add_eos = read_key(metadata, "add_eos_token", bool, False)
        for flag, token_id, key in ((add_bos, vocabulary.bos_id, "bos"), (add_eos, vocabulary.eos_id, "eos")):
            if flag and token_id is None:
                raise ModelFileError(f"{PREFIX}{key}_token_id is missing and add_{key}_token asks for it")
        return cls(vocabulary, coder, add_bos, add_eos)

    def encode(self, text: str, parse_special: bool = True, add_special: bool = True) -> list[int]:
        """Token ids. Control tokens are recognised only with `parse_special`, user-defined ones always.

        `add_special` adds the begin and end tokens that the file asks for. UsageError on a lone surrogate.
        """
        _check_unicode(text)
        ids: list[int] = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        for part in (self._special_splitter if parse_special else self._defined_splitter).split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(self._coder.encode(part))
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of the ids; invalid UTF-8 becomes U+FFFD. `skip_special` leaves control tokens out.

        A space that `encode` put in front (SentencePiece files may ask for one) is part of the text.
        """
        kept = (i for i in ids if not (skip_special and i in self.special_ids))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token adds to the text; UsageError outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise UsageError(f"token id {token_id} is outside the vocabulary of {self.vocab_size}")
        token = self._tokens[token_id]
        if token_id in self._verbatim_ids:
            return token.encode("utf-8", "surrogateescape")
        return self._coder.token_bytes(token)

    @cached_property
    def _special_splitter(self) -> Verbatim:
        return Verbatim(self._verbatim)

    @cached_property
    def _defined_splitter(self) -> Verbatim:
        return Verbatim(self._defined)


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the text is not valid UTF-8: lone surrogate at character {error.start}") from None
