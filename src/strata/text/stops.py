"""Stop strings in a stream of text pieces."""

from collections.abc import Sequence

from strata.errors import UsageError


class StopMatcher:
    """Ends text at the first stop string, wherever pieces are cut; holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or "" in stops:
            raise UsageError("stop strings must be a list of non-empty strings")
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """(text to show, whether a stop string was completed). After a match nothing is shown any more.

        The match that is complete first wins, whatever the pieces; of those that end together, the longest.
        """
        if self.matched is not None:
            return "", True
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            end, _, self.matched = min(found)
            begin = end - len(self.matched)
            self._held = ""
            return text[:begin], True
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        shown, self._held = text[: len(text) - keep], text[len(text) - keep :]
        return shown, False

    def finish(self) -> str:
        """Text held back that turned out not to be a stop string."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
