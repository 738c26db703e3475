"""A conversation as token ids: what a chat command or a server calls before it generates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata.text.chat.messages import Message
from strata.text.chat.parser import OutputParser
from strata.text.chat.protect import Segment
from strata.text.chat.schema import Tool
from strata.text.chat.styles import ToolStyle
from strata.text.chat.template import ChatTemplate
from strata.text.tokenizer import Tokenizer

# What clients may ask for, where the template knows only xhigh, medium and low.
_EFFORTS = {"max": "xhigh", "high": "xhigh", "minimal": "low"}


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation, and how to read the answer to it."""

    text: str
    token_ids: list[int]
    style: ToolStyle
    starts_in_thinking: bool  # the text ends inside a think block that the answer goes on with

    def parser(self, tools: Sequence[Tool] | None) -> OutputParser:
        """A parser for one answer; without tools, calls stay text."""
        return OutputParser(self.style if tools else ToolStyle.NONE, self.starts_in_thinking, tools)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Tool] | None = None,
    **options: Any,
) -> ChatPrompt:
    """Render and encode. Options as for `ChatTemplate.render_segments`; UsageError where the template refuses."""
    control_tokens = [tokenizer.token_bytes(i).decode("utf-8", "replace") for i in tokenizer.special_ids]
    segments = template.render_segments(messages, tools, control_tokens, **options)
    text = "".join(segment.text for segment in segments)
    used = template.tool_template if tools and template.tool_template else template
    return ChatPrompt(text, encode_segments(tokenizer, segments), used.style, ends_in_thinking(text))


def encode_segments(tokenizer: Tokenizer, segments: Sequence[Segment]) -> list[int]:
    """Ids of a rendered prompt. The begin token is added where the file asks for it and the template has not."""
    ids: list[int] = []
    for segment in segments:
        ids += tokenizer.encode(segment.text, segment.parse_special, add_special=False)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ids


def ends_in_thinking(text: str) -> bool:
    """Whether a rendered prompt ends with an open think block, as templates begin one for the model."""
    return text.rstrip().endswith("<think>")


def effort_options(template: ChatTemplate, effort: str | None) -> Mapping[str, Any]:
    """Options of `render_segments` for the reasoning effort that a client asks for.

    "none" turns thinking off; names that the template does not know take the nearest that it does.
    """
    if effort is None:
        return {}
    if effort == "none":
        return {"enable_thinking": False}
    return {"reasoning_effort": _EFFORTS.get(effort, effort) if "xhigh" in template.source else effort}
