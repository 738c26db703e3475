"""What int8 activations would do to a case: products with quantised weights see inputs rounded in groups of 32."""

from typing import Any

import numpy as np
from scripts.goldens.cases import Array

from oracles import Model
from strata.gguf import TensorType

FLOATS = (TensorType.F32, TensorType.F16, TensorType.BF16)


class RoundedModel(Model):
    """A model whose quantised weights round what they are multiplied with."""

    def __getitem__(self, name: str) -> Array:
        weight = super().__getitem__(name)
        looked_up = name in ("token_embd.weight", "per_layer_token_embd.weight")
        return weight if looked_up or self.file.tensors[name].type in FLOATS else weight.view(_Rounding)


class _Rounding(np.ndarray[Any, Any]):
    """The right side of x @ w: Python asks a subclass first."""

    def __rmatmul__(self, x: Array) -> Array:
        groups = np.asarray(x).reshape(-1, 32)
        scale = np.abs(groups).max(1, keepdims=True) / 127
        codes = np.round(groups / np.where(scale == 0, 1, scale))
        return (codes * scale).reshape(x.shape) @ np.asarray(self)
