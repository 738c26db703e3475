"""An answer on standard output as it comes; a terminal shows reasoning too, dimmed."""

import sys

from strata.text.chat import ContentDelta, Event, ReasoningDelta

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class Screen:
    """Give `write` the events of one answer, then `close`; other outputs than terminals get the content alone."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._dimmed = False

    def write(self, event: Event) -> None:
        """Show a piece at once."""
        if isinstance(event, ContentDelta):
            self._put(("\n\n" if self._undim() else "") + event.text)
        elif isinstance(event, ReasoningDelta) and self._terminal:
            self._put(event.text if self._dimmed else _DIM + event.text)
            self._dimmed = True

    def close(self) -> None:
        """End the answer's last line."""
        self._undim()
        self._put("\n")

    def _undim(self) -> bool:
        """Whether there was reasoning to end."""
        was, self._dimmed = self._dimmed, False
        if was:
            self._put(_PLAIN)
        return was

    def _put(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
