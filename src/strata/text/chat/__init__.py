"""Chat: messages to prompts through a model's own template, and answers to reasoning, content and tool calls."""

from strata.text.chat.events import (
    ArgumentsDelta,
    ContentDelta,
    Event,
    ParsedOutput,
    ReasoningDelta,
    ToolCall,
    ToolCallEnd,
    ToolCallStart,
    collect,
)
from strata.text.chat.parser import OutputParser
from strata.text.chat.plain_tools import describe_tools
from strata.text.chat.prompt import ChatPrompt, effort_options, encode_chat, encode_segments
from strata.text.chat.protect import Segment
from strata.text.chat.styles import ToolStyle, detect_style
from strata.text.chat.template import ChatTemplate

__all__ = [
    "ArgumentsDelta",
    "ChatPrompt",
    "ChatTemplate",
    "ContentDelta",
    "Event",
    "OutputParser",
    "ParsedOutput",
    "ReasoningDelta",
    "Segment",
    "ToolCall",
    "ToolCallEnd",
    "ToolCallStart",
    "ToolStyle",
    "collect",
    "describe_tools",
    "detect_style",
    "effort_options",
    "encode_chat",
    "encode_segments",
]
