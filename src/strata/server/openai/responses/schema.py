"""POST /v1/responses (platform.openai.com, "Responses")."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from strata.engine import SamplingParams
from strata.server.body import (
    MAX_MESSAGES,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    Body,
    Count,
    Name,
    Object,
    Seed,
    Stops,
    Temperature,
    TopP,
)
from strata.server.openai.sampling import UNLIMITED
from strata.server.openai.tools import Choice


class Tool(Body):
    """A function; tools that OpenAI's own servers run are refused."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Reasoning(Body):
    """How much the model thinks."""

    effort: str | None = None
    summary: str | None = None
    budget: Annotated[int, Field(ge=0)] | None = None


class Text(Body):
    """What the text must be."""

    format: Object | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(Body):
    """A conversation and how to go on with it; `seed` and the last three are ours."""

    model: str | None = None
    input: str | Annotated[list[Object], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: Object | None = None
    max_output_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | Object | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    metadata: dict[str, str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    seed: Seed | None = None
    stop: str | Stops | None = None
    stop_in_reasoning: bool | None = None
    repetition_limit: Annotated[int, Field(ge=0, le=2**20)] | None = None

    @model_validator(mode="after")
    def _serveable(self) -> "ResponsesRequest":
        if self.background:
            raise ValueError("background is not supported")
        for name in ("conversation", "prompt"):
            if self.given(name):
                raise ValueError(f"{name} is not supported; previous_response_id is")
        if self.truncation == "auto":
            raise ValueError(
                "truncation auto is not supported: nothing is left out of a conversation unasked"
            )
        return self

    @property
    def n(self) -> int:
        """One answer."""
        return 1

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(s for s in stops if s)

    @property
    def num_logprobs(self) -> int | None:
        """None: not asked for."""
        if "message.output_text.logprobs" in (self.include or ()):
            return self.top_logprobs or 0
        return self.top_logprobs or None

    def params(self, eos_ids: frozenset[int], seed: int, logprobs: int | None) -> SamplingParams:
        """Engine parameters; `seed` where the client gave none."""
        return SamplingParams(
            max_tokens=self.max_output_tokens or UNLIMITED,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=(seed if self.seed is None else self.seed) % 2**64,
            stop_token_ids=eos_ids,
            logprobs=logprobs,
        )

    def echoed(self) -> dict[str, Any]:
        """What a response says of its request."""
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "top_logprobs": self.top_logprobs or 0,
            "tools": [tool.model_dump(exclude_none=True) for tool in self.tools or ()],
            "tool_choice": self.tool_choice or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": None, "summary": None}
            | (self.reasoning.model_dump(exclude_none=True) if self.reasoning else {}),
            "text": self.text.model_dump(exclude_none=True) if self.text else {"format": {"type": "text"}},
            "metadata": self.metadata or {},
            "truncation": "disabled",
            "store": self.store is not False,
            "background": False,
        }
