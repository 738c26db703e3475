"""qwen35: the dense hybrid of Qwen3.5 and later; value heads tiled over key heads, a SwiGLU after every mixer."""

from strata.gguf import ModelFile
from strata.models.hybrid import Hybrid, attach_hybrid_draft, load_hybrid
from strata.models.swiglu import SwiGlu

ARCHITECTURES = ("qwen35",)


def load(file: ModelFile) -> Hybrid:
    """The model in a file."""
    return load_hybrid(file, SwiGlu.load)


def attach_draft(model: Hybrid, file: ModelFile) -> Hybrid:
    """The model with the draft layer of a file."""
    return attach_hybrid_draft(model, file, SwiGlu.load)
