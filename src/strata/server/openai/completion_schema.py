"""POST /v1/completions."""

from typing import Annotated

from pydantic import Field, model_validator

from strata.server.body import Object
from strata.server.openai.formats import Format, read_format
from strata.server.openai.sampling import Sampling

TokenIds = Annotated[list[int], Field(max_length=2**24)]


class CompletionRequest(Sampling):
    """Text or token ids to go on from: one prompt, or a list of them."""

    prompt: str | list[int] | list[str] | list[TokenIds]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    response_format: Object | None = None

    @model_validator(mode="after")
    def _serveable(self) -> "CompletionRequest":
        for name in ("suffix", "best_of"):
            value = self.given(name)
            if value and not (name == "best_of" and value == (self.n or 1)):
                raise ValueError(f"{name} is not supported")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo with logprobs is not supported: a prompt's logprobs are not kept")
        if len(self.prompts) > 64:
            raise ValueError(f"{len(self.prompts)} prompts; at most 64 are taken")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each prompt."""
        if isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int):
            return list(self.prompt)
        return [self.prompt]  # type: ignore[list-item]  # text, or a list of ids

    def format(self) -> Format:
        """What the answer must be."""
        return read_format(self.response_format, self.model_extra or {})
