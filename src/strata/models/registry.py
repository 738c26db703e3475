"""Which architecture file reads which `general.architecture`."""

from typing import Protocol

from strata.errors import UnsupportedError
from strata.gguf import ModelFile
from strata.memory import KVPool
from strata.models import llama, qwen3
from strata.ops import Buffer, Builder

_MODULES = (llama, qwen3)


class ModelConfig(Protocol):
    """Numbers every architecture has."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""

    @property
    def max_position(self) -> int:
        """Positions the model was trained for, or its rope scaling reaches."""


class Model(Protocol):
    """What the engine asks of an architecture."""

    @property
    def config(self) -> ModelConfig:
        """The model's numbers."""

    def kv_shape(self) -> tuple[int, int, int]:
        """(layers with KV, key heads, head_dim)."""

    def rope_table(self, max_positions: int) -> Buffer:
        """The rotary table for a context of that many positions."""

    def forward(self, b: Builder, kv: KVPool, table: Buffer, logits: Buffer) -> None:
        """Emits the forward pass; the part after mark `head` makes the logits and may run again for other rows."""


def supported_architectures() -> tuple[str, ...]:
    """Values of `general.architecture` that `load` takes."""
    return tuple(name for module in _MODULES for name in module.ARCHITECTURES)


def load(file: ModelFile) -> Model:
    """The model in a file."""
    name = file.get("general.architecture", str)
    for module in _MODULES:
        if name in module.ARCHITECTURES:
            model: Model = module.load(file)
            return model
    raise UnsupportedError(
        f"{file.path}: architecture {name!r} is not supported; supported: {', '.join(supported_architectures())}"
    )
