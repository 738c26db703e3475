"""The cases beside this file: a tiny model each, token ids, logits from transformers (docs/goldens.md)."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from oracles import Model

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Golden:
    """One case; paths that it does not have are None."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @cached_property
    def record(self) -> dict[str, Any]:
        """case.json: what the case covers and how it was made."""
        return json.loads((self.directory / "case.json").read_text(encoding="utf-8"))

    @property
    def model_path(self) -> Path:
        """The GGUF file; cases kept as a checkpoint have none."""
        return self.directory / "model.gguf"

    @property
    def draft_path(self) -> Path | None:
        """A draft layer in a file of its own."""
        path = self.directory / "draft.gguf"
        return path if path.exists() else None

    @property
    def tokens(self) -> np.ndarray:
        """int32 [tokens]."""
        return np.load(self.directory / "tokens.npy")

    @property
    def logits(self) -> np.ndarray:
        """float32 [tokens, vocab]."""
        return np.load(self.directory / "logits.npy")

    @property
    def draft_logits(self) -> np.ndarray | None:
        """float32 [tokens - 1, vocab], where there is a draft layer."""
        path = self.directory / "draft_logits.npy"
        return np.load(path) if path.exists() else None

    def models(self) -> tuple[Model, Model | None]:
        """The oracle's view of the model file and of the draft file."""
        return Model(self.model_path), Model(self.draft_path) if self.draft_path else None


ALL = {path.parent.name: Golden(path.parent) for path in sorted(HERE.glob("*/case.json"))}
WITH_MODEL = [name for name, case in ALL.items() if not case.record["checkpoint"]]
CHECKPOINTS = [name for name, case in ALL.items() if case.record["checkpoint"]]
