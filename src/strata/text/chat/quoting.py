"""Where in Markdown a text stands: in a code fence, in a code span, at the start of a line."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Quoting:
    """Fed with text as it goes by, in any pieces."""

    def __init__(self) -> None:
        self._line = ""
        self._fence = ""

    def push(self, text: str) -> None:
        """Text that comes next."""
        *lines, last = (self._line + text).split("\n")
        for line in lines:
            self._end_line(line)
        self._line = last

    def ahead(self, text: str) -> "Quoting":
        """The place behind `text`, which is not taken in."""
        copy = Quoting()
        copy._line, copy._fence = self._line, self._fence
        copy.push(text)
        return copy

    @property
    def at_line_start(self) -> bool:
        """Whether nothing but space stands before, on this line."""
        return not self._line.strip()

    @property
    def in_fence(self) -> bool:
        """Whether a code fence is open, or opens on this line."""
        return bool(self._fence or _FENCE.match(self._line))

    @property
    def in_span(self) -> bool:
        """Whether this line has an odd number of backticks so far."""
        return self._line.count("`") % 2 == 1

    def _end_line(self, line: str) -> None:
        found = _FENCE.match(line)
        if not found:
            return
        mark, rest = found[1], line[found.end() :]
        if not self._fence:
            # a line of backticks with more of them further on is a code span, not a fence
            self._fence = "" if mark[0] == "`" and "`" in rest else mark
        elif mark[0] == self._fence[0] and len(mark) >= len(self._fence) and not rest.strip():
            self._fence = ""
