"""The text that a model writes, split into reasoning, content and tool calls while it comes.

What counts as a tag (docs/chat.md has the reasons):
* `</think>` ends reasoning unless it stands in a code span; `<think>` counts at the very beginning only.
* A call counts with its whole opening, outside of code fences and spans. Inside reasoning it must also begin a line and
  name a function that was offered; the reasoning goes on behind it.
* Space before a tag and line breaks behind one belong to the tag.
* Of an answer that a limit cut, what may have become a tag is dropped; of one that ended by itself, it is text.

Decisions depend on the text alone, never on how it was cut. Held back are only space and what may become a tag.
"""

from collections.abc import Sequence

from strata.text.chat.events import (
    ArgumentsDelta,
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallEnd,
    ToolCallStart,
)
from strata.text.chat.json_call import JsonCall, match_head
from strata.text.chat.matching import NO, UNDECIDED, Match, literal, named, skip_space
from strata.text.chat.quoting import Quoting
from strata.text.chat.schema import Tool, ToolSchemas
from strata.text.chat.styles import ToolStyle
from strata.text.chat.xml_call import XmlCall

_THINK, _END_THINK, _CALL, _END_CALL, _FUNCTION = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=",
)


class OutputParser:
    """`push` text as it comes, then `finish`; the events of both, put together, are the answer.

    `tools` are the functions offered, as in the request (None: unknown, so any name is taken). With style NONE only
    reasoning is split off.
    """

    def __init__(
        self, style: ToolStyle, starts_in_thinking: bool, tools: Sequence[Tool] | None = None
    ) -> None:
        self._style, self._schemas = style, ToolSchemas(tools)
        self._thinking = starts_in_thinking
        self._text = ""
        self._quoting = Quoting()
        self._tail = ""  # of the text written: a tag that was refused there takes what follows with it
        self._space = ""  # seen, and not yet known to be text
        self._fresh = True  # nothing has been written in this section
        self._untouched = True  # nothing at all has been written
        self._behind_call = False
        self._call: XmlCall | JsonCall | None = None
        self._num_calls = 0
        self._cut = False
        self._events: list[Event] = []

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside of reasoning."""
        return self._thinking

    @property
    def decided(self) -> bool:
        """Whether a think block can no longer begin."""
        return not self._untouched

    def push(self, text: str) -> list[Event]:
        """Events that this text makes certain."""
        self._text += text
        return self._drain(final=False)

    def finish(self, cut: bool = False) -> list[Event]:
        """What is left when no more text comes; a call that never ended is not complete. `cut`: a limit ended the text,
        not the model."""
        self._cut = cut
        events = self._drain(final=True)
        rest, self._space = "" if self._behind_call else self._strip(self._space), ""
        return [*events, self._delta(rest)] if rest else events

    def _drain(self, final: bool) -> list[Event]:
        at = 0
        while at < len(self._text) or (final and self._call):
            before = (at, self._call)
            at = self._read_call(at, final) if self._call else self._read_text(at, final)
            if before == (at, self._call):
                break
        self._text = self._text[at:]
        events, self._events = self._events, []
        return events

    def _read_text(self, at: int, final: bool) -> int:
        start = self._text.find("<", at) if self._has_tags else -1
        if start != at:
            end = start if start >= 0 else len(self._text)
            self._write(self._text[at:end])
            return end
        found = self._read_tag(at, final)
        if found:
            return found.end
        if found.undecided and not final:
            return at
        if found.undecided and self._cut and _END_CALL not in self._text[at:]:
            self._space = ""
            return len(self._text)
        self._write("<")
        return at + 1

    @property
    def _has_tags(self) -> bool:
        return self._thinking or self._untouched or self._style is not ToolStyle.NONE

    def _read_tag(self, at: int, final: bool) -> Match:
        """Act on the tag at `at`, if one stands there."""
        undecided = False
        for read in (self._read_think, self._read_end_think, self._read_opening, self._read_stray_end):
            match = read(at, final)
            if match:
                return match
            undecided |= match.undecided
        return UNDECIDED if undecided else NO

    def _read_think(self, at: int, _final: bool) -> Match:
        match = literal(self._text, at, _THINK) if self._untouched else NO
        if match:
            self._begin_section(thinking=True)
        return match

    def _read_end_think(self, at: int, final: bool) -> Match:
        match = literal(self._text, at, _END_THINK) if self._thinking else NO
        if match and self._quoting_with_space().in_span and not final:
            # a stray backtick must not keep reasoning open: quoted tags are not followed by a line break
            following = literal(self._text, match.end, "\n")
            match = match if following else following
        if match:
            self._begin_section(thinking=False)
            self._untouched = False
        return match

    def _read_stray_end(self, at: int, final: bool) -> Match:
        """The end tag of the call before, which may be missing, or cut off with the answer."""
        match = literal(self._text, at, _END_CALL) if self._behind_call else NO
        if match.undecided and final:
            match = Match(len(self._text))
        if match:
            self._space = ""
        return match

    def _read_opening(self, at: int, _final: bool) -> Match:
        if self._style is ToolStyle.NONE:
            return NO
        quoting = self._quoting_with_space()
        if quoting.in_fence or quoting.in_span or (self._thinking and not quoting.at_line_start):
            return NO
        tag = literal(self._text, at, _CALL)
        if self._style is ToolStyle.JSON:
            match = match_head(self._text, skip_space(self._text, tag.end)) if tag else tag
        else:
            match = self._match_xml(at, tag, quoting.at_line_start)
        if not match or (self._thinking and self._schemas.given and match.name not in self._schemas):
            return match if match.undecided else NO
        self._begin_call(match.name)
        return match

    def _match_xml(self, at: int, tag: Match, at_line_start: bool) -> Match:
        """`<tool_call>` and `<function=NAME>`. Models forget the first: a name that was offered may do without."""
        if tag:
            return named(self._text, skip_space(self._text, tag.end), _FUNCTION)
        may_be_bare = at_line_start and self._schemas.given and self._tail != _CALL
        bare = named(self._text, at, _FUNCTION) if may_be_bare else NO
        if bare and bare.name in self._schemas:
            return bare
        return UNDECIDED if bare.undecided or tag.undecided else NO

    def _begin_section(self, thinking: bool) -> None:
        self._thinking, self._fresh, self._behind_call = thinking, True, False
        self._space, self._tail, self._quoting = "", "", Quoting()

    def _begin_call(self, name: str) -> None:
        self._untouched, self._space = False, ""
        self._call = XmlCall(name, self._schemas) if self._style is ToolStyle.XML else JsonCall()
        self._events.append(ToolCallStart(self._num_calls, name, name in self._schemas))

    def _read_call(self, at: int, final: bool) -> int:
        assert self._call is not None
        arguments, read = self._call.read(self._text[at:], final, self._cut)
        if arguments:
            self._events.append(ArgumentsDelta(self._num_calls, arguments))
        if self._call.done:
            self._events.append(ToolCallEnd(self._num_calls, self._call.complete))
            self._num_calls += 1
            self._call, self._fresh, self._behind_call = None, True, True
            self._tail, self._quoting = "", Quoting()
        return at + read

    def _write(self, text: str) -> None:
        """Text of the section; its trailing space waits, as a tag may follow."""
        text = self._space + text
        body = text.rstrip() if self._has_tags or self._fresh else text
        self._space = text[len(body) :]
        if not body:
            return
        self._quoting.push(body)
        self._tail = (self._tail + body)[-len(_CALL) :]
        body = self._strip(body)
        self._fresh = self._untouched = self._behind_call = False
        self._events.append(self._delta(body))

    def _strip(self, text: str) -> str:
        """Text without the line breaks that belong to the tag before it."""
        return text.lstrip("\r\n") if self._fresh and (self._thinking or not self._untouched) else text

    def _quoting_with_space(self) -> Quoting:
        """Where the text stands, the space that waits counted in."""
        return self._quoting.ahead(self._space)

    def _delta(self, text: str) -> Event:
        return ReasoningDelta(text) if self._thinking else ContentDelta(text)
