"""A request's tokens as text: pieces as they become certain, and whether a stop ended it."""

from collections.abc import Collection, Sequence

from strata.text.detokenizer import Detokenizer
from strata.text.stops import StopMatcher
from strata.text.tokenizer import Tokenizer


class TextStream:
    """Push tokens, then finish once; `stopped` is set by a stop token (which gives no text) or a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), stop_token_ids: Collection[int] = ()):
        self._detokenizer, self._matcher = Detokenizer(tokenizer), StopMatcher(stops)
        self._stop_token_ids = stop_token_ids
        self.stopped = False
        self.num_tokens = 0

    def push(self, token: int) -> str:
        """New text that no later token can change; empty once stopped."""
        if self.stopped:
            return ""
        self.num_tokens += 1
        if token in self._stop_token_ids:
            piece = self.finish()
            self.stopped = True
            return piece
        piece, self.stopped = self._matcher.push(self._detokenizer.push(token))
        return piece

    def finish(self) -> str:
        """What was held back, when no more tokens come."""
        if self.stopped:
            return ""
        piece, self.stopped = self._matcher.push(self._detokenizer.finish())
        return piece if self.stopped else piece + self._matcher.finish()
