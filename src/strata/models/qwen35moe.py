"""qwen35moe: the hybrid of Qwen3.5 with experts; value heads tiled over key heads."""

from strata.gguf import ModelFile
from strata.models.hybrid import Hybrid, attach_hybrid_draft, load_hybrid
from strata.models.moe import MoeConfig

ARCHITECTURES = ("qwen35moe",)


def load(file: ModelFile) -> Hybrid:
    """The model in a file."""
    return load_hybrid(file, MoeConfig.read(file, "qwen35moe").load)


def attach_draft(model: Hybrid, file: ModelFile) -> Hybrid:
    """The model with the draft layer of a file."""
    return attach_hybrid_draft(model, file, MoeConfig.read(file, "qwen35moe").load)
