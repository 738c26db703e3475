"""What an answer is made of, in the order in which it comes."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Next piece of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Next piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins; `known` says whether a function of that name was offered."""

    index: int
    name: str
    known: bool


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """Next piece of a call's arguments: JSON text, a whole object when the call is complete."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """A call is over; not `complete` if the text ended inside it, or its JSON is broken."""

    index: int
    complete: bool


Event: TypeAlias = ReasoningDelta | ContentDelta | ToolCallStart | ArgumentsDelta | ToolCallEnd


@dataclass
class ToolCall:
    """One call put together."""

    name: str
    known: bool
    arguments: str = ""
    complete: bool = False


@dataclass
class ParsedOutput:
    """An answer put together."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


def collect(events: Iterable[Event]) -> ParsedOutput:
    """The whole answer of a stream of events."""
    output = ParsedOutput()
    for event in events:
        match event:
            case ReasoningDelta(text):
                output.reasoning += text
            case ContentDelta(text):
                output.content += text
            case ToolCallStart(_, name, known):
                output.tool_calls.append(ToolCall(name, known))
            case ArgumentsDelta(index, text):
                output.tool_calls[index].arguments += text
            case ToolCallEnd(index, complete):
                output.tool_calls[index].complete = complete
    return output
