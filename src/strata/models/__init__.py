"""Architectures, one file each: GGUF names to weights, and the forward pass as ops."""

from strata.models.registry import Model, ModelConfig, load, supported_architectures

__all__ = ["Model", "ModelConfig", "load", "supported_architectures"]
