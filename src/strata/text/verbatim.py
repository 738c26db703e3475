"""Tokens recognised in text as they are written: control and user-defined ones."""

import re
from collections.abc import Iterator


class Verbatim:
    """Finds the leftmost, then longest, of a set of token texts; time grows with the text alone."""

    def __init__(self, ids: dict[str, int]) -> None:
        self._ids = ids
        self._lengths: dict[str, list[int]] = {}  # by the first two characters, longest first
        for text in ids:
            self._lengths.setdefault(text[:2], []).append(len(text))
        for prefix, lengths in self._lengths.items():
            # A token of one character is a shorter choice for every prefix that begins with it.
            own = set(lengths) | ({1} if prefix[:1] in ids else set())
            self._lengths[prefix] = sorted(own, reverse=True)
        self._prefix = re.compile(_any_of(self._lengths)) if ids else None

    def split(self, text: str) -> Iterator[str | int]:
        """The text in order: ids of tokens found, and what lies between them (never empty)."""
        begin = at = 0
        while self._prefix and (match := self._prefix.search(text, at)):
            at = match.start()
            for length in self._lengths[match[0]]:
                token_id = self._ids.get(text[at : at + length])
                if token_id is not None:
                    if begin < at:
                        yield text[begin:at]
                    yield token_id
                    begin = at = at + length
                    break
            else:
                at += 1
        if begin < len(text):
            yield text[begin:]


def _any_of(prefixes: dict[str, list[int]]) -> str:
    """Pattern of prefixes of one or two characters, two where both fit, one branch a first character."""
    seconds: dict[str, list[str]] = {}
    for prefix in prefixes:
        seconds.setdefault(prefix[0], []).append(prefix[1:])
    branches = []
    for first, rest in seconds.items():
        pairs = "".join(map(re.escape, filter(None, rest)))
        follow = f"[{pairs}]" + ("?" if "" in rest else "") if pairs else ""
        branches.append(re.escape(first) + follow)
    return "|".join(branches)
