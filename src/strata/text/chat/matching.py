"""Tags at a place in text that may still be coming: there, not there, or too early to say."""

from typing import NamedTuple

# Bounds of what one tag may hold back: a name, and the space between tags.
MAX_NAME = 256
MAX_SPACE = 64


class Match(NamedTuple):
    """`end` is where the tag ends, -1 where it is not there; `name` is what a tag with a name says."""

    end: int
    name: str = ""
    undecided: bool = False

    def __bool__(self) -> bool:
        return self.end >= 0


NO = Match(-1)
UNDECIDED = Match(-1, undecided=True)


def literal(text: str, at: int, tag: str) -> Match:
    """The fixed `tag` at `at`."""
    if text.startswith(tag, at):
        return Match(at + len(tag))
    return UNDECIDED if tag.startswith(text[at:]) else NO


def named(text: str, at: int, opening: str) -> Match:
    """`opening`, a name without `<`, `>` or line breaks, and `>`: `<function=NAME>`."""
    start = literal(text, at, opening)
    if not start:
        return start
    for end in range(start.end, min(len(text), start.end + MAX_NAME + 1)):
        if text[end] == ">":
            name = text[start.end : end].strip()
            return Match(end + 1, name) if name else NO
        if text[end] in "<\n":
            return NO
    return UNDECIDED if len(text) - start.end <= MAX_NAME else NO


def skip_space(text: str, at: int) -> int:
    """Where the white space that begins at `at` ends, at most MAX_SPACE characters on."""
    stop = min(len(text), at + MAX_SPACE)
    while at < stop and text[at].isspace():
        at += 1
    return at


def spaced(text: str, at: int, *tags: str) -> Match:
    """White space and then one of the fixed `tags`; UNDECIDED while the text ends before either is certain."""
    found = [literal(text, skip_space(text, at), tag) for tag in tags]
    return next((m for m in found if m), next((m for m in found if m.undecided), NO))
