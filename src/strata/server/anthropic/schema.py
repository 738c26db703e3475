"""POST /v1/messages and /v1/messages/count_tokens (docs.anthropic.com, "Messages")."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from strata.engine import SamplingParams
from strata.server.body import MAX_MESSAGES, MAX_TOOLS, Body, Count, Name, Object, Seed, Stops, TopK, TopP

UNLIMITED = 2**24


class Turn(Body):
    """One turn; content as text or as blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Object]


class Tool(Body):
    """A function; `type` custom or absent. Tools that Anthropic's own servers run are refused."""

    name: Name
    description: str | None = None
    input_schema: Object | None = None
    type: str | None = None
    strict: bool | None = None


class Choice(Body):
    """Which tools the answer may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks, for how many tokens at most, and whether that is shown (`display` omitted: not)."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    display: str | None = None


class CountRequest(Body):
    """What counts as input."""

    model: str
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Object] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: Object | None = None


class MessagesRequest(CountRequest):
    """A conversation and how to go on with it. `seed` and the last three are ours."""

    max_tokens: Count
    stop_sequences: Stops | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    metadata: Object | None = None
    seed: Seed | None = None
    stop_in_reasoning: bool | None = None
    repetition_limit: Annotated[int, Field(ge=0, le=2**20)] | None = None
    n: ClassVar[int] = 1

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings; empty ones would match everywhere and are left out."""
        return tuple(s for s in self.stop_sequences or () if s)

    def params(self, eos_ids: frozenset[int], seed: int, logprobs: int | None) -> SamplingParams:
        """Engine parameters; `seed` where the client gave none."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=(seed if self.seed is None else self.seed) % 2**64,
            stop_token_ids=eos_ids,
            logprobs=logprobs,
        )
