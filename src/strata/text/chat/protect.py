"""Control tokens that a template writes are parsed; the same spelling inside a message stays text.

Before rendering, the first character of each control token spelled in the input is replaced by a mark: a private-use
character that occurs nowhere else. Templates see strings of the same length that differ in nothing else. After
rendering, control tokens without a mark are the template's own; marks turn back into what they stood for.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_PRIVATE = range(0x100000, 0x10FFFE)  # Supplementary Private Use Area-B
_PRIVATE_CHARS = re.compile("[\U00100000-\U0010fffd]")


class Segment(NamedTuple):
    """A stretch of a prompt, to be encoded by itself: `parse_special` as `Tokenizer.encode` takes it."""

    text: str
    parse_special: bool


class Protector:
    """Marks for one set of control tokens, none of which is in the template's source or the input."""

    def __init__(self, control_tokens: Iterable[str], taken: Iterable[str]) -> None:
        tokens = sorted({token for token in control_tokens if token}, key=len, reverse=True)
        either = "|".join(map(re.escape, tokens)) or "(?!)"
        self._tokens, self._beginnings = re.compile(either), re.compile(f"(?=({either}))")
        self._prefixes = {token[:n] for token in tokens for n in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)
        used = {char for text in taken for char in _PRIVATE_CHARS.findall(text)}
        free = (chr(code) for code in _PRIVATE if chr(code) not in used)
        self._mark_of = dict(zip(sorted({token[0] for token in tokens}), free, strict=False))
        self._char_of = {mark: char for char, mark in self._mark_of.items()}

    @property
    def marks(self) -> str:
        """The characters that stand for others."""
        return "".join(self._char_of)

    def protect(self, text: str, allowed: frozenset[str] = frozenset()) -> str:
        """Text with a mark wherever a control token begins, or might once the template adds something.

        The end of the text counts as a beginning where it is the start of a token, trailing space aside, since
        the template may trim it and put another message's text behind it.
        """
        starts = {m.start() for m in self._beginnings.finditer(text) if m[1] not in allowed}
        end = len(text.rstrip())
        for stop in {end, len(text)}:
            first = max(0, stop - self._longest)
            starts.update(at for at in range(first, stop) if text[at:stop] in self._prefixes)
        if not starts:
            return text
        chars = list(text)
        for at in starts:
            chars[at] = self._mark_of[chars[at]]
        return "".join(chars)

    def restore(self, text: str) -> str:
        """Text with every mark replaced by the character that it stands for."""
        for mark, char in self._char_of.items():
            text = text.replace(mark, char)
        return text

    def segments(self, rendered: str) -> list[Segment]:
        """The rendered text, cut around the stretches that spell protected control tokens.

        Cuts stand only at the template's own control tokens, which cut the text anyway, so that ids are those of
        one encoding of the whole.
        """
        found: list[Segment] = []
        for text in self._stretches(rendered):
            plain = self.restore(text)
            if plain != text:
                found.append(Segment(plain, False))
            elif found and found[-1].parse_special:
                found[-1] = Segment(found[-1].text + text, True)
            elif text:
                found.append(Segment(text, True))
        return found

    def _stretches(self, rendered: str) -> Iterator[str]:
        at = 0
        for match in self._tokens.finditer(rendered):
            yield rendered[at : match.start()]
            yield match.group()
            at = match.end()
        yield rendered[at:]


def map_plain(value: Any, change: Callable[[str], str] = str) -> Any:
    """A copy made of JSON's own types, every string changed, keys included.

    Templates must not get hold of other objects, whose methods the sandbox does not know; those become their
    type's name, for example an image that a template only counts.
    """
    if isinstance(value, str):
        return change(str(value))
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, Mapping):
        return {map_plain(key, change): map_plain(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_plain(item, change) for item in value]
    return f"<{type(value).__name__}>"


def iterate_strings(value: Any) -> Iterator[str]:
    """Every string inside plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from iterate_strings(key)
            yield from iterate_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from iterate_strings(item)
