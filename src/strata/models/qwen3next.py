"""qwen3next: the first hybrid with experts; value heads grouped by key head, beta and alpha packed likewise."""

from strata.gguf import ModelFile
from strata.models.hybrid import Hybrid, attach_hybrid_draft, load_hybrid
from strata.models.moe import MoeConfig

ARCHITECTURES = ("qwen3next",)


def load(file: ModelFile) -> Hybrid:
    """The model in a file."""
    return load_hybrid(file, MoeConfig.read(file, "qwen3next").load)


def attach_draft(model: Hybrid, file: ModelFile) -> Hybrid:
    """The model with the draft layer of a file."""
    return attach_hybrid_draft(model, file, MoeConfig.read(file, "qwen3next").load)
