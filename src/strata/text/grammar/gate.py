"""Reasoning before a grammar: no mask while the model thinks, and an end to thinking at its budget."""

from collections import deque

from strata.text.chat import ContentDelta, OutputParser, ToolStyle
from strata.text.detokenizer import Detokenizer
from strata.text.tokenizer import Tokenizer

_TAG = "</think>"
END_OF_THINKING, BEHIND_THINKING = f"\n{_TAG}\n\n", "\n\n"


class ReasoningGate:
    """Open once the answer has left its think block, told as the parser of answers tells it."""

    def __init__(self, tokenizer: Tokenizer, starts_in_thinking: bool, budget: int | None = None):
        self._detokenizer = Detokenizer(tokenizer)
        self._parser = OutputParser(ToolStyle.NONE, starts_in_thinking)
        self._budget, self._num_tokens = budget, 0
        self._end, self._behind = (
            tokenizer.encode(text, add_special=False) for text in (END_OF_THINKING, BEHIND_THINKING)
        )
        self._forced: deque[int] = deque()
        self._tail = ""
        self.open = False

    @property
    def forced(self) -> int | None:
        """The token that must come now."""
        self._force_at_budget()
        return self._forced[0] if self._forced else None

    def accept(self, token_id: int) -> str:
        """Takes a token in; the text behind the end of thinking, where this token brought it."""
        forced = bool(self._forced)
        if forced:
            self._forced.popleft()
        self._num_tokens += 1
        thought, text = self._parser.thinking, self._detokenizer.push(token_id)
        self._tail = (self._tail + text)[-len(_TAG) :]
        events = self._parser.push(text)
        if thought and not self._parser.thinking and not forced and self._tail == _TAG:
            self._forced.extend(self._behind)  # as templates write it, and so as models learned it
        self.open = self._parser.decided and not self._parser.thinking and not self._forced
        return "".join(event.text for event in events if isinstance(event, ContentDelta))

    def _force_at_budget(self) -> None:
        if self._budget is None or self.open or self._forced or not self._parser.thinking:
            return
        if self._num_tokens >= self._budget:
            self._budget = None
            self._forced.extend(self._end)
