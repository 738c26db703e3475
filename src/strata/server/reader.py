"""One answer's tokens as events: text as it becomes certain, reasoning, calls, stops, repetition."""

from collections.abc import Collection, Sequence

from strata.server.repetition import RepetitionGuard
from strata.text import Detokenizer, StopMatcher, Tokenizer
from strata.text.chat import ContentDelta, Event, OutputParser, ReasoningDelta, ToolCallStart


class AnswerReader:
    """Push tokens, then finish once. Without a parser all text is content.

    `stopped` is set by a stop token (which gives no text), a stop string (`stop_sequence`) or the guard (`repeats`);
    nothing is shown after that. Stop strings are looked for in content, and on demand in reasoning, never in calls.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        parser: OutputParser | None,
        stops: Sequence[str],
        stop_token_ids: Collection[int],
        *,
        stop_in_reasoning: bool = False,
        repetition_limit: int = 0,
    ):
        self._detokenizer, self._parser = Detokenizer(tokenizer), parser
        self._content = StopMatcher(stops)
        self._reasoning = StopMatcher(stops if stop_in_reasoning else ())
        self._stop_token_ids = stop_token_ids
        self._guard = RepetitionGuard(repetition_limit) if repetition_limit else None
        self.stopped = self.repeats = self.calls = False
        self.num_tokens = self.num_reasoning_tokens = 0

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the answer."""
        return self._content.matched or self._reasoning.matched

    def push(self, token: int) -> list[Event]:
        """Events that this token makes certain; none once stopped."""
        if self.stopped:
            return []
        self.num_tokens += 1
        if token in self._stop_token_ids:
            events = self.finish(cut=False)
            self.stopped = True
            return events
        self.num_reasoning_tokens += bool(self._parser and self._parser.thinking)
        events = self._matched(self._parsed(self._detokenizer.push(token)))
        if not self.stopped and self._guard and self._guard.push(token):
            events += self.finish()
            self.stopped = self.repeats = True
        return events

    def finish(self, cut: bool = True) -> list[Event]:
        """What was held back, when no more tokens come. `cut`: not because the model ended its answer."""
        if self.stopped:
            return []
        events = self._parsed(self._detokenizer.finish())
        if self._parser is not None:
            events += self._parser.finish(cut)
        events = self._matched(events)
        return events if self.stopped else [*events, *self._released()]

    def _parsed(self, text: str) -> list[Event]:
        if self._parser is not None:
            return self._parser.push(text)
        return [ContentDelta(text)] if text else []

    def _matched(self, events: list[Event]) -> list[Event]:
        """Events up to the first stop string."""
        shown: list[Event] = []
        for event in events:
            if isinstance(event, ContentDelta | ReasoningDelta):
                matcher = self._content if isinstance(event, ContentDelta) else self._reasoning
                text, self.stopped = matcher.push(event.text)
                shown += [type(event)(text)] if text else []
            else:
                self.calls |= isinstance(event, ToolCallStart)
                shown += [*self._released(), event]
            if self.stopped:
                break
        return shown

    def _released(self) -> list[Event]:
        reasoning, content = self._reasoning.finish(), self._content.finish()
        return [
            *([ReasoningDelta(reasoning)] if reasoning else []),
            *([ContentDelta(content)] if content else []),
        ]
