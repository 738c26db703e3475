"""A loaded model with what text needs: its tokenizer, and parameters made of flags."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from strata.cli import inputs
from strata.cli.progress import ReadProgress
from strata.config import EngineOptions, SamplingOptions
from strata.engine import Engine, SamplingParams
from strata.text import Tokenizer
from strata.text.chat import ChatTemplate


class TextModel:
    """Engine and tokenizer of one file."""

    def __init__(self, path: Path, options: EngineOptions) -> None:
        self.engine = Engine.load(path, options, progress=ReadProgress())
        self.tokenizer = Tokenizer.from_metadata(self.engine.model_file.metadata)

    def template(self) -> ChatTemplate:
        """The file's chat template; ModelFileError where it has none."""
        return ChatTemplate.from_metadata(self.engine.model_file.metadata)

    def params(self, sampling: SamplingOptions, logit_bias: Sequence[str]) -> SamplingParams:
        """The engine's parameters; `logit_bias` as `ID=VALUE` items."""
        return SamplingParams(
            **dataclasses.asdict(sampling),
            logit_bias=inputs.parse_logit_bias(logit_bias, self.engine.model_config.vocab_size),
            stop_token_ids=frozenset(self.tokenizer.eos_ids),
        )
