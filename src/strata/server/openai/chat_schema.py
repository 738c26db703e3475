"""POST /v1/chat/completions."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from strata.errors import UsageError
from strata.server.body import MAX_MESSAGES, MAX_TOP_LOGPROBS, Body, Count, Object
from strata.server.conversation import Conversation
from strata.server.openai.formats import read_format
from strata.server.openai.sampling import Sampling
from strata.server.openai.tools import Choice, Tools, tool_choice


class CalledFunction(Body):
    """Name and arguments of a call of an earlier turn."""

    name: str
    arguments: str | Object | None = None


class Called(Body):
    """A call of an earlier turn."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class Message(Body):
    """One turn; content as text or as a list of text parts."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Object] | None = None
    tool_calls: list[Called] | None = None


class ChatRequest(Sampling):
    """A conversation and how to go on with it."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    tools: Tools | None = None
    tool_choice: Choice | Object | None = None
    parallel_tool_calls: bool | None = None
    response_format: Object | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    reasoning_effort: str | None = None
    reasoning_budget: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: Object | None = None

    @model_validator(mode="after")
    def _serveable(self) -> "ChatRequest":
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        for name in ("functions", "function_call"):
            if self.given(name):
                raise ValueError(f"{name} is not supported; tools and tool_choice are")
        for name in ("audio", "prediction", "web_search_options"):
            if self.given(name):
                raise ValueError(f"{name} is not supported")
        if set(self.given("modalities") or ["text"]) != {"text"}:
            raise ValueError("modalities: text is supported alone")
        return self

    @property
    def num_logprobs(self) -> int | None:
        """None: not asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def conversation(self) -> Conversation:
        """In our words; UsageError for what cannot be served."""
        wanted = read_format(self.response_format, self.model_extra or {})
        return Conversation(
            messages=[message_of(m.model_dump(exclude_none=True)) for m in self.messages],
            tools=[tool.model_dump(exclude_none=True) for tool in self.tools or ()],
            tool_choice=tool_choice(self.tool_choice, self.parallel_tool_calls),
            grammar=wanted.grammar,
            schema=wanted.schema,
            effort=self.reasoning_effort,
            reasoning_budget=self.reasoning_budget,
            variables=self.chat_template_kwargs or {},
        )


def message_of(message: dict[str, Any]) -> dict[str, Any]:
    """Content parts of type text as one string, the form most templates know; `developer` as `system`."""
    if message["role"] == "developer":
        message["role"] = "system"
    parts = message.get("content")
    if isinstance(parts, list):
        message["content"] = "".join(_text(part) for part in parts)
    return message


def _text(part: dict[str, Any]) -> str:
    kind = part.get("type")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind not in ("text", "input_text", "output_text", "refusal") or not isinstance(text, str):
        raise UsageError(f"content part of type {kind!r} is not supported; text is")
    return text
