"""From a checkpoint in safetensors to a GGUF file: names, transformations, types, metadata."""

from strata.convert.types import TYPES
from strata.convert.write import Conversion, plan_conversion

__all__ = ["TYPES", "Conversion", "plan_conversion"]
