"""Where in Markdown a text stands: in a code fence, in a code span, at the start of a line."""

import re

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_MAX_HEAD = 128  # characters of a line that are kept; a longer line of code marks is no fence


class Quoting:
    """Fed with text as it goes by, in any pieces."""

    def __init__(self) -> None:
        self._head = ""  # of this line
        self._num_ticks = 0  # backticks on this line
        self._fence = ""

    def push(self, text: str) -> None:
        """Text that comes next."""
        *lines, last = text.split("\n")
        for line in lines:
            self._extend(line)
            self._end_line()
        self._extend(last)

    def ahead(self, text: str) -> "Quoting":
        """The place behind `text`, which is not taken in."""
        copy = Quoting()
        copy._head, copy._num_ticks, copy._fence = self._head, self._num_ticks, self._fence
        copy.push(text)
        return copy

    @property
    def at_line_start(self) -> bool:
        """Whether nothing but space stands before, on this line."""
        return not self._head.strip()

    @property
    def in_fence(self) -> bool:
        """Whether a code fence is open, or opens on this line."""
        return bool(self._fence or _FENCE.match(self._head))

    @property
    def in_span(self) -> bool:
        """Whether this line has an odd number of backticks so far."""
        return self._num_ticks % 2 == 1

    def _extend(self, text: str) -> None:
        self._head += text[: _MAX_HEAD - len(self._head)]
        self._num_ticks += text.count("`")

    def _end_line(self) -> None:
        if found := _FENCE.match(self._head):
            mark = found[1]
            if not self._fence:
                # a line of backticks with more of them further on is a code span, not a fence
                self._fence = "" if mark[0] == "`" and self._num_ticks > len(mark) else mark
            elif mark.startswith(self._fence) and self._head.strip() == mark:
                self._fence = ""
        self._head, self._num_ticks = "", 0
