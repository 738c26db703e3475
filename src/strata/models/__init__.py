"""Architectures, one file each: GGUF names to weights, and the forward pass as ops."""

from strata.models.draft_pass import DraftPass, Keep
from strata.models.registry import (
    DraftModel,
    Model,
    ModelConfig,
    has_draft,
    load,
    load_with_draft,
    supported_architectures,
)

__all__ = [
    "DraftModel",
    "DraftPass",
    "Keep",
    "Model",
    "ModelConfig",
    "has_draft",
    "load",
    "load_with_draft",
    "supported_architectures",
]
