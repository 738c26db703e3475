"""Which architecture file reads which `general.architecture`."""

from typing import Any, Protocol

from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import ModelFile
from strata.memory import StatePool, StateShape
from strata.models import gemma3, llama, qwen3, qwen3next, qwen4exp, qwen35, qwen35moe
from strata.models.draft_pass import DraftPass, Keep
from strata.models.metadata import RopeConfig
from strata.ops import Buffer, Builder

_MODULES = (llama, gemma3, qwen3, qwen3next, qwen35, qwen35moe, qwen4exp)


class ModelConfig(Protocol):
    """Numbers every architecture has."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""

    @property
    def rope(self) -> RopeConfig:
        """Rotary embedding, and the positions it reaches."""


class Model(Protocol):
    """What the engine asks of an architecture."""

    @property
    def config(self) -> ModelConfig:
        """The model's numbers."""

    def state_shape(self) -> StateShape:
        """What a sequence carries from step to step."""

    def forward(self, b: Builder, state: StatePool, table: Buffer, logits: Buffer) -> None:
        """Emits the forward pass; the part after mark `head` makes the logits and may run again for other rows."""


class DraftModel(Model, Protocol):
    """A model with a draft layer attached."""

    @property
    def draft_width(self) -> int:
        """Values of a row that the draft layer reads and gives."""

    def forward(
        self, b: Builder, state: StatePool, table: Buffer, logits: Buffer, keep: Keep | None = None
    ) -> None:
        """As `Model.forward`; `keep` is called with what the draft layer reads of every row, [rows, draft_width]."""

    def draft_forward(self, b: Builder, state: StatePool, table: Buffer, run: DraftPass) -> None:
        """Emits a pass of the draft layer: row i of a position reads `hidden` of that position and the next token."""

    def draft_cells(
        self, b: Builder, state: StatePool, table: Buffer, hidden: Buffer, tokens: Buffer | None = None
    ) -> None:
        """Emits what stores the rows' cells of the draft layer and no more: what prompts need, and rows that nothing is
        drafted after. `tokens`: those after the rows' positions, in the place of the step's."""


def supported_architectures() -> tuple[str, ...]:
    """Values of `general.architecture` that `load` takes."""
    return tuple(name for module in _MODULES for name in module.ARCHITECTURES)


def load(file: ModelFile) -> Model:
    """The model in a file, without its draft layer."""
    model: Model = _module(file).load(file)
    return model


def load_with_draft(file: ModelFile, draft: ModelFile) -> DraftModel:
    """The model of `file` with the draft layer of `draft`: the same file, or one that holds only that layer."""
    trunk, name = (f.get("general.architecture", str) for f in (file, draft))
    if trunk != name:
        raise ModelFileError(f"{draft.path}: a draft layer for {name}, the model is {trunk}")
    marker = _draft_marker(draft)
    attach = getattr(_module(draft), "attach_draft", None)
    if attach is None or marker not in draft.tensors:
        raise ModelFileError(f"{draft.path}: no draft layer: tensor {marker} is missing")
    drafted: DraftModel = attach(load(file), draft)
    return drafted


def has_draft(file: ModelFile) -> bool:
    """Whether a file has a draft layer that can be used."""
    return hasattr(_module(file), "attach_draft") and _draft_marker(file) in file.tensors


def _draft_marker(file: ModelFile) -> str:
    """A tensor that every draft layer has."""
    blocks = _architecture_number(file, "block_count") - _architecture_number(file, "nextn_predict_layers")
    return f"blk.{blocks}.nextn.eh_proj.weight"


def _architecture_number(file: ModelFile, key: str) -> int:
    return file.get(f"{file.get('general.architecture', str)}.{key}", int, 0)


def _module(file: ModelFile) -> Any:
    name = file.get("general.architecture", str)
    for module in _MODULES:
        if name in module.ARCHITECTURES:
            return module
    raise UnsupportedError(
        f"{file.path}: architecture {name!r} is not supported; supported: {', '.join(supported_architectures())}"
    )
