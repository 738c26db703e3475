"""Token ids to text as they come, without ever showing half a character."""

import codecs

from strata.text.tokenizer import Tokenizer


class Detokenizer:
    """Holds back an unfinished UTF-8 sequence; all text emitted equals the decode of all ids together."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that this token completes, possibly empty."""
        return "" if token_id in self._skipped else self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What is left: U+FFFD for a sequence that never ended. The detokenizer is then as new."""
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text
