"""Architectures, one file each: GGUF names to weights, and the forward pass as ops."""

from strata.models.registry import (
    DraftModel,
    Model,
    ModelConfig,
    load,
    load_with_draft,
    supported_architectures,
)

__all__ = ["DraftModel", "Model", "ModelConfig", "load", "load_with_draft", "supported_architectures"]
