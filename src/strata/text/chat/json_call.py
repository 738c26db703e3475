"""One call in the JSON format, read as it comes: `{"name": NAME, "arguments": {...}}`.

The arguments are passed on as the model writes them, once the name is known. JSON has no `<` outside of strings, so
one there ends the call.
"""

import json
import re

from strata.text.chat.matching import MAX_NAME, NO, UNDECIDED, Match

_STRING = r'"(?:[^"\\]|\\.)*"'
_NAME_FIRST = re.compile(rf'\{{\s*"name"\s*:\s*({_STRING})', re.DOTALL)
# What `_NAME_FIRST` begins with, at the end of the text.
_BEGINNING = re.compile(r'\{\s*("\w*("\s*(:\s*("(?:[^"\\]|\\.)*\\?)?)?)?)?\Z', re.DOTALL)
_OTHER_FIRST = re.compile(r'\{\s*"(?:arguments|parameters|id|type)"\s*:')
_STRING_MARK, _OUTSIDE_MARK = re.compile(r'["\\]'), re.compile(r'["{}\[\]<,:\s]')
_ARGUMENTS = ("arguments", "parameters")


def match_head(text: str, at: int) -> Match:
    """The beginning of a call, as far as the text that `JsonCall` reads; UNDECIDED until its name is known."""
    if at >= len(text):
        return UNDECIDED
    if found := _NAME_FIRST.match(text, at):
        try:
            name = str(json.loads(found[1]))
        except ValueError:
            return NO
        return Match(found.end(), name) if name else NO
    if _OTHER_FIRST.match(text, at):
        return _match_whole(text, at)
    return UNDECIDED if _BEGINNING.match(text, at) and len(text) - at <= 2 * MAX_NAME else NO


def _match_whole(text: str, at: int) -> Match:
    """A call whose name comes last, which must be there as a whole."""
    scanner = _Scanner()
    end = scanner.scan(text, at)
    if not scanner.ended:
        return UNDECIDED
    try:
        call = json.loads(text[at:end])
    except ValueError:
        return NO
    name = call.get("name") if isinstance(call, dict) else None
    return Match(at + 1, name) if isinstance(name, str) and name else NO


class JsonCall:
    """Turns the text behind the name (or behind the first brace) into the JSON text of the arguments."""

    def __init__(self) -> None:
        self._scanner: _Scanner | None = None
        self._key: str | None = None
        self._value = ""
        self._streams = False  # the value is the arguments' object and goes out as it comes
        self._arguments: list[str] = []  # pieces
        self._closed = False
        self.done = False
        self.complete = False

    def read(self, text: str, final: bool, cut: bool = False) -> tuple[str, int]:
        """(JSON text of the arguments, characters of `text` that are dealt with). `final`: no more will come; `cut`:
        because of a limit, so that arguments must not look whole."""
        parts, at = [], 0
        while at < len(text) and not self.done:
            if self._scanner is None:
                at = self._between(text, at)
            else:
                piece, at = self._inside(self._scanner, text, at)
                parts.append(piece)
        if final and not self.done:
            self.done, self.complete = True, self._closed and self._is_whole()
        if self.done and not self._arguments and (self._closed or not cut):
            self._arguments = ["{}"]
            parts.append("{}")
        return "".join(parts), at

    def _between(self, text: str, at: int) -> int:
        """One character between the keys and values of the call's object, or behind it."""
        char = text[at]
        if char == "}":
            self._closed = True
        elif char == "<" or (self._closed and not char.isspace()):
            self.done, self.complete = True, self._is_whole()
            return at
        elif not char.isspace() and char not in ",:]":
            self._scanner, self._value = _Scanner(), ""
            self._streams = char == "{" and self._key in _ARGUMENTS and not self._arguments
            return at
        return at + 1

    def _inside(self, scanner: "_Scanner", text: str, at: int) -> tuple[str, int]:
        """Part of a key or a value."""
        end = scanner.scan(text, at)
        piece = text[at:end]
        if self._streams:
            self._arguments.append(piece)
        else:
            self._value += piece
        self.done = scanner.broken
        if scanner.ended:
            self._scanner = None
            piece = piece if self._streams else self._end_value()
            if self._streams:
                self._key = None
            return piece, end
        return piece if self._streams else "", end

    def _end_value(self) -> str:
        """Text of arguments that were not an object: models also write them as JSON text in a string."""
        if self._key is None:
            self._key = self._value.strip('"')
            return ""
        is_arguments, self._key = self._key in _ARGUMENTS and not self._arguments, None
        if not is_arguments:
            return ""
        try:
            decoded = json.loads(self._value)
        except ValueError:
            decoded = self._value
        text = decoded if isinstance(decoded, str) else self._value if decoded else ""
        self._arguments.append(text or "{}")
        return self._arguments[0]

    def _is_whole(self) -> bool:
        try:
            json.loads("".join(self._arguments) or "{}")
        except (ValueError, RecursionError):
            return False
        return True


class _Scanner:
    """Finds the end of one JSON value in pieces of text."""

    def __init__(self) -> None:
        self._depth = 0
        self._string = self._escape = False
        self.ended = False
        self.broken = False  # a `<` outside of strings

    def scan(self, text: str, at: int) -> int:
        """Where the value ends, or the text."""
        while at < len(text) and not self.ended:
            at = self._scan_string(text, at) if self._string else self._scan_outside(text, at)
        return at

    def _scan_string(self, text: str, at: int) -> int:
        if self._escape:
            self._escape = False
            return at + 1
        found = _STRING_MARK.search(text, at)
        if not found:
            return len(text)
        self._escape = found[0] == "\\"
        if not self._escape:
            self._string = False
            self.ended = self._depth == 0
        return found.end()

    def _scan_outside(self, text: str, at: int) -> int:
        found = _OUTSIDE_MARK.search(text, at)
        if not found:
            return len(text)
        char = found[0]
        if char == "<":
            self.ended = self.broken = True
        elif char == '"':
            self._string = True
        elif char in "{[":
            self._depth += 1
        elif self._depth == 0:  # the end of a number or a word
            self.ended = True
        elif char in "}]":
            self._depth -= 1
            self.ended = self._depth == 0
            return found.end()
        return found.start() if self.ended else found.end()
