"""Fields that OpenAI's text endpoints share."""

from typing import Annotated

from pydantic import Field, model_validator

from strata.engine import SamplingParams
from strata.errors import UsageError
from strata.server.body import (
    MAX_CHOICES,
    Body,
    Count,
    MinP,
    Object,
    Penalty,
    Repetition,
    Seed,
    Stops,
    Temperature,
    TopK,
    TopP,
)

Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]


UNLIMITED = 2**24  # the engine ends an answer where the context does


class Sampling(Body):
    """How tokens are chosen, when the answer ends, how it comes. A field that is null counts as not given."""

    model: str | None = None
    max_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Repetition | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: dict[str, Bias] | None = None
    seed: Seed | None = None
    stop: str | Stops | None = None
    stop_in_reasoning: bool | None = None
    repetition_limit: Annotated[int, Field(ge=0, le=2**20)] | None = None
    stream: bool | None = None
    stream_options: Object | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    ignore_eos: bool | None = None

    @model_validator(mode="after")
    def _usage_needs_a_stream(self) -> "Sampling":
        if self.stream_options and not self.stream:
            raise ValueError("stream_options is for streams; set stream")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings; empty ones would match everywhere and are left out."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(s for s in stops if s)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def biases(self) -> dict[int, float]:
        """The logit bias by token id; UsageError for a key that is none."""
        try:
            return {int(token): value for token, value in (self.logit_bias or {}).items()}
        except ValueError:
            raise UsageError("logit_bias: keys must be token ids") from None

    def params(self, eos_ids: frozenset[int], seed: int, logprobs: int | None) -> SamplingParams:
        """Engine parameters; `seed` where the client gave none."""
        penalty = self.repetition_penalty if self.repeat_penalty is None else self.repeat_penalty
        return SamplingParams(
            max_tokens=self.max_tokens or UNLIMITED,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            repetition_penalty=1.0 if penalty is None else penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias=self.biases,
            seed=(seed if self.seed is None else self.seed) % 2**64,
            stop_token_ids=eos_ids,
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
        )
