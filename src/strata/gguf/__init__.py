"""GGUF model files: reader, writer, split files, checks. Knows nothing of models."""

from strata.gguf.metadata import Metadata, StringArray
from strata.gguf.reader import ModelFile, open_model
from strata.gguf.tensors import TensorInfo
from strata.gguf.types import TensorType, ValueType
from strata.gguf.verify import Verification, verify
from strata.gguf.writer import Typed, write_model

__all__ = [
    "Metadata",
    "ModelFile",
    "StringArray",
    "TensorInfo",
    "TensorType",
    "Typed",
    "ValueType",
    "Verification",
    "open_model",
    "verify",
    "write_model",
]
