"""One call in the XML function format, read as it comes.

    <function=NAME>\\n<parameter=KEY>\\nVALUE\\n</parameter>\\n...</function>

The format escapes nothing, so a value may hold text that looks like tags. A value ends at `</parameter>` only where
the next parameter or the end of the function follows. Calls quoted inside a value, written out on lines of their own,
are counted and skipped. A missing `</parameter>` is made up for where the end of the call, or a parameter that the
schema knows and that had no value yet, stands on a line of its own.
"""

import json

from strata.text.chat.matching import NO, UNDECIDED, Match, literal, named, spaced
from strata.text.chat.schema import ToolSchemas, to_json

_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_CALL, _END_CALL = "<tool_call>", "</tool_call>"


class XmlCall:
    """Turns the text behind `<function=NAME>` into the JSON text of the arguments."""

    def __init__(self, name: str, schemas: ToolSchemas) -> None:
        self._name, self._schemas = name, schemas
        self._keys: list[str] = []
        self._value: _Value | None = None
        self._cut = False
        self.done = False
        self.complete = False

    def read(self, text: str, final: bool, cut: bool = False) -> tuple[str, int]:
        """(JSON text of the arguments, characters of `text` that are dealt with). `final`: no more will come; `cut`:
        because of a limit, so that arguments must not look whole, and half a tag is no value."""
        parts, at = [], 0
        self._cut = cut
        while not self.done:
            before = (at, self._value)
            if self._value is None:
                piece, at = self._between(text, at, final)
            else:
                piece, at = self._inside(self._value, text, at, final)
            parts.append(piece)
            if before == (at, self._value):
                break
        return "".join(parts), at

    def _between(self, text: str, at: int, final: bool) -> tuple[str, int]:
        """One tag outside of values; anything else there is skipped."""
        start = text.find("<", at)
        if start < 0:
            return self._cut_off(len(text)) if final else ("", len(text))
        parameter = named(text, start, _PARAMETER)
        if parameter:
            self._open(parameter.name)
            comma = ", " if len(self._keys) > 1 else "{"
            return f"{comma}{json.dumps(parameter.name, ensure_ascii=False)}: ", parameter.end
        ends = [(literal(text, start, tag), tag) for tag in (_END_FUNCTION, _END_CALL, _CALL, _FUNCTION)]
        for match, tag in ends:
            if match:
                self.done, self.complete = True, tag in (_END_FUNCTION, _END_CALL)
                return self._closing(), match.end if tag == _END_FUNCTION else start
        if parameter.undecided or any(match.undecided for match, _ in ends):
            return self._cut_off(len(text)) if final else ("", start)
        return "", start + 1

    def _inside(self, value: "_Value", text: str, at: int, final: bool) -> tuple[str, int]:
        """Value text up to the next tag, or the tag."""
        start = text.find("<", at)
        if start != at:
            end = start if start >= 0 else len(text)
            piece = value.push(text[at:end])
            if start < 0 and final:
                self.done = True
                piece += value.cut_off()
            return piece, end
        match = self._end_of_value(value, text, at, final and not self._cut)
        if match.undecided and final:
            self.done = True
            value.end_at_tag()
            return value.cut_off(), len(text)
        if match.undecided:
            return "", at
        if match:
            self._value = None
            return value.close(), match.end
        return value.push("<"), at + 1

    def _end_of_value(self, value: "_Value", text: str, at: int, final: bool) -> Match:
        tests = [self._close, *((self._sibling, self._nested, self._missing) if value.at_line_start else ())]
        undecided = False
        for test in tests:
            match: Match = test(value, text, at, final)
            if match:
                return match
            undecided |= match.undecided
        return UNDECIDED if undecided and not final else NO

    def _close(self, value: "_Value", text: str, at: int, final: bool) -> Match:
        tag = literal(text, at, _END_PARAMETER)
        if not tag:
            return tag
        if value.parameters:
            value.parameters -= value.at_line_start
            return NO
        following = spaced(text, tag.end, _PARAMETER, _END_FUNCTION, _END_CALL)
        if following.undecided:
            return Match(tag.end) if final else following
        return Match(tag.end) if following else NO

    def _sibling(self, value: "_Value", text: str, at: int, _final: bool) -> Match:
        match = named(text, at, _PARAMETER)
        if match and not value.functions and self._is_expected(match.name):
            return Match(at)
        return UNDECIDED if match.undecided else NO

    def _nested(self, value: "_Value", text: str, at: int, _final: bool) -> Match:
        """Never an end: counts what a quoted call opens and closes."""
        opens = (named(text, at, _PARAMETER), named(text, at, _FUNCTION))
        line_end = literal(text, opens[0].end, "\n") if opens[0] else opens[0]
        if line_end.undecided:
            return line_end
        value.parameters += bool(line_end)
        value.functions += bool(opens[1])
        return UNDECIDED if any(match.undecided for match in opens) else NO

    def _missing(self, value: "_Value", text: str, at: int, final: bool) -> Match:
        tag = literal(text, at, _END_FUNCTION)
        if not tag:
            return tag
        if value.functions:
            value.functions -= 1
            return NO
        following = spaced(text, tag.end, _END_CALL)
        ended = final and not text[tag.end :].strip()
        return Match(at) if following or ended else following

    def _is_expected(self, key: str) -> bool:
        return key in self._schemas.properties(self._name) and key not in self._keys

    def _open(self, key: str) -> None:
        self._keys.append(key)
        types = self._schemas.types(self._name, key)
        self._value = _Value(None if types == {"string"} else types)

    def _closing(self) -> str:
        return "}" if self._keys else "{}"

    def _cut_off(self, end: int) -> tuple[str, int]:
        self.done = True
        return "" if self._cut else self._closing(), end


class _Value:
    """One parameter's value: text goes out at once, anything else when it is whole."""

    def __init__(self, types: frozenset[str] | None) -> None:
        self._types = types  # None: a string
        self._text = ""  # of a value that is not a string
        self._held = ""  # a line break that is part of the closing tag if that follows
        self._started = self._quoted = False
        self.parameters = self.functions = 0  # opened by calls quoted inside
        self.at_line_start = True

    def push(self, text: str) -> str:
        """JSON text that became certain."""
        if not text:
            return ""
        self.at_line_start = text.endswith("\n")
        if not self._started:
            self._started = True
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        return self._emit(text.removesuffix("\n"))

    def close(self) -> str:
        """The rest of the JSON text; the line break before the tag is not part of the value."""
        if self._types is not None:
            return to_json(self._text, self._types)
        return '"' if self._quoted else '""'

    def end_at_tag(self) -> None:
        """What follows is the beginning of a tag, to which a line break before it belongs."""
        self._held = ""

    def cut_off(self) -> str:
        """What can be said of a value that never ended."""
        if self._types is not None:
            return self._text
        held, self._held = self._held, ""
        return self._emit(held)

    def _emit(self, text: str) -> str:
        if self._types is not None:
            self._text += text
            return ""
        if not text:
            return ""
        opening, self._quoted = "" if self._quoted else '"', True
        return opening + json.dumps(text, ensure_ascii=False)[1:-1]
