"""Grammars compiled for one vocabulary, by llguidance (3 MB, no dependencies; imported on first use).

A mask costs 5 to 100 microseconds of host time: the vocabulary is a trie that the grammar's automaton walks.
"""

import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from strata.errors import FaultError, UsageError
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

_LOG_SILENT = 0
# Tokens of whole classes are decided at once where what may still come holds a class: white space, and text of a JSON
# string up to some lengths. These halve what llguidance's own lengths (10 and 30) cost (docs/measurements.md).
_TEXT = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_TEXT}{{1,{n}}}" for n in (4, 8, 12, 16, 24, 32)),
    f"{_TEXT}+",
]
_MAX_SOURCE = 1024 * 1024  # characters: a hundred tools with long schemas; compiled in seconds
_QUOTED_SOURCE = re.compile(r"\n\s*\d+ \|")


class Grammar:
    """Where one answer stands in its grammar: masks out, tokens in."""

    def __init__(self, matcher: "llguidance.LLMatcher"):
        self._matcher = matcher

    def fill(self, row: NDArray[np.int32]) -> None:
        """Writes the mask of the next token, i32 [ceil(vocab / 32)], bit set: allowed."""
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._check()

    def accept(self, token_id: int) -> None:
        """Takes a sampled token in; FaultError for one that the mask did not allow."""
        if not self._matcher.consume_token(token_id):
            self._check()
            raise FaultError(f"the grammar does not allow token {token_id}")

    @property
    def complete(self) -> bool:
        """Whether the text so far is whole and nothing may follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise FaultError(f"the grammar failed: {_one_line(self._matcher.get_error())}")


class GrammarCompiler:
    """One a tokenizer; safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int):
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._compiled = lru_cache(maxsize=64)(self._matcher)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._tokenizer.eos_ids

    def compile(self, source: str) -> Grammar:
        """A grammar at its beginning, `source` in Lark, compiled once; UsageError says what is wrong with it."""
        return Grammar(self._compiled(source).deep_copy())

    def special(self, text: str) -> str:
        """How a rule writes a token's text: control tokens by id, as no text spells them."""
        ids = self._tokenizer.encode(text, add_special=False)
        if len(ids) == 1 and ids[0] in self._tokenizer.special_ids:
            return f"<[{ids[0]}]>"
        return f'"{text}"'

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text in an answer."""
        return self._tokenizer.encode(text, parse_special=False, add_special=False)

    def _matcher(self, source: str) -> "llguidance.LLMatcher":
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415  (see above)

        if len(source) > _MAX_SOURCE:
            raise UsageError(
                f"tools and formats make a grammar of {len(source):,} characters; at most {_MAX_SOURCE:,} are taken"
            )
        limits = LLParserLimits(verbose_errors=False)
        lark = LLMatcher.grammar_from_lark(source)
        matcher = LLMatcher(self._vocabulary, lark, log_level=_LOG_SILENT, limits=limits)
        first = matcher.deep_copy()  # some that parse have no first token
        if not matcher.is_error():
            first.compute_bitmask()
        for tried in (matcher, first):
            if tried.is_error():
                raise UsageError(f"the grammar cannot be used: {_one_line(tried.get_error())}")
        return matcher

    @cached_property
    def _vocabulary(self) -> "llguidance.LLTokenizer":
        from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415  (see above)

        wrapper = TokenizerWrapper(_Vocabulary(self._tokenizer))
        ends = sorted(self._tokenizer.eos_ids)
        return LLTokenizer(wrapper, n_vocab=self._vocab_size, eos_token=ends, slices=_SLICES)


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        plain = text.decode("utf-8", "replace")
        return self._tokenizer.encode(plain, parse_special=False, add_special=False)


def _one_line(text: str) -> str:
    """The message without the source that llguidance quotes behind it, or where it broke."""
    if text.startswith("panic"):
        return "it is too large"
    return " ".join(_QUOTED_SOURCE.split(text, maxsplit=1)[0].split())[:300]
