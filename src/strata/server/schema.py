"""Requests of OpenAI's protocol as this server takes them. What is known but not served yet is refused by name."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from strata.engine import SamplingParams

Logit = Annotated[float, Field(ge=-100, le=100)]


class Sampling(BaseModel):
    """Fields that both completion endpoints share; unknown fields are ignored, as clients send many."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] = 0
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    repeat_penalty: Annotated[float, Field(ge=0.001, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, le=100)] | None = None
    logit_bias: dict[int, Logit] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    n: int = 1
    ignore_eos: bool = False

    @model_validator(mode="after")
    def _serveable(self) -> "Sampling":
        if self.n != 1:
            raise ValueError(f"n is {self.n}; this server gives one choice a request")
        extra = self.model_extra or {}
        for name in ("tools", "functions", "logprobs", "top_logprobs", "best_of", "echo", "suffix"):
            if extra.get(name):
                raise ValueError(f"{name} is not supported yet")
        kind = (self.response_format or {}).get("type", "text")
        if kind != "text":
            raise ValueError(f"response_format {kind} is not supported yet")
        return self

    @property
    def stops(self) -> list[str]:
        """Stop strings; empty ones would match everywhere and are left out."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [s for s in stops if s]

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool((self.stream_options or {}).get("include_usage"))

    def params(self, eos_ids: frozenset[int], room: int, seed: int) -> SamplingParams:
        """Engine parameters; `room` tokens at most, `seed` where the client gave none."""
        given = self.repetition_penalty if self.repeat_penalty is None else self.repeat_penalty
        return SamplingParams(
            max_tokens=min(self.max_tokens or room, room),
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=1.0 if given is None else given,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias or {},
            seed=(seed if self.seed is None else self.seed) % 2**64,
            stop_token_ids=eos_ids,
            ignore_eos=self.ignore_eos,
        )


class CompletionRequest(Sampling):
    """POST /v1/completions: text or token ids, one prompt."""

    prompt: str | list[int] | list[str]

    @property
    def single(self) -> str | list[int]:
        """The one prompt."""
        if isinstance(self.prompt, list) and self.prompt and isinstance(self.prompt[0], str):
            if len(self.prompt) != 1:
                raise ValueError(f"{len(self.prompt)} prompts; this server takes one a request")
            return str(self.prompt[0])
        return self.prompt  # type: ignore[return-value]  # the other list holds ints


class Message(BaseModel):
    """One turn; content as text or as a list of text parts."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None


class ChatRequest(Sampling):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _newer_name(self) -> "ChatRequest":
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens
        return self
