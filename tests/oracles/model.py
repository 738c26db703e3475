"""A model file as the oracles see it: metadata by short key, tensors as float arrays with rows first."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gguf
from strata.gguf import ModelFile, TensorType, open_model

Array = np.ndarray[Any, np.dtype[Any]]


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    """Logistic function, by tanh so that it never overflows."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def grouped(head: Array, key_heads: int, ratio: int) -> Array:
    """Key head of value head h where the value heads of one key head lie together."""
    return head // ratio


def tiled(head: Array, key_heads: int, ratio: int) -> Array:
    """Key head of value head h where value heads run once through all key heads, then again."""
    return head % key_heads


@dataclass(frozen=True)
class Rules:
    """What differs between architectures that share a formula, and what no file says."""

    output_gate: Callable[[Array], Array] = silu
    key_head: Callable[[Array, int, int], Array] = tiled
    rope_halves: bool = True  # pairs (i, i + rotary / 2); False: (2i, 2i + 1)


RULES = {
    "llama": Rules(rope_halves=False),
    "qwen2": Rules(),
    "qwen3": Rules(),
    "qwen3moe": Rules(),
    "qwen35": Rules(),
    "qwen35moe": Rules(),
    "qwen3next": Rules(key_head=grouped),
    "qwen4exp": Rules(output_gate=sigmoid),
}


class Model:
    """Tensors are decoded when asked for; `overrides` and `rules` are there for tests that plant faults."""

    def __init__(self, path: str | Path, dtype: type[np.floating[Any]] = np.float64) -> None:
        self.file: ModelFile = open_model(path)
        self.arch = self.file.get("general.architecture", str)
        self.rules = RULES[self.arch]
        self.dtype = dtype
        self.overrides: dict[str, Array] = {}
        self.keys: dict[str, Any] = {}
        self._decoded: dict[str, Array] = {}

    def key(self, name: str, default: Any = None) -> Any:
        """Metadata `<architecture>.<name>`; KeyError if it is missing and has no default."""
        if name in self.keys:
            return self.keys[name]
        full = f"{self.arch}.{name}"
        if default is None and full not in self.file.metadata:
            raise KeyError(full)
        return self.file.metadata.get(full, default)

    def __contains__(self, name: str) -> bool:
        return name in self.file.tensors

    def __getitem__(self, name: str) -> Array:
        if name in self.overrides:
            return self.overrides[name]
        if name not in self._decoded:
            info = self.file.tensors[name]
            values = decode(self.file.data(name), info.type).astype(self.dtype)
            self._decoded[name] = values.reshape(info.ne[::-1])
        return self._decoded[name]

    def maybe(self, name: str) -> Array | None:
        """The tensor, or None where the file has none of that name."""
        if name not in self:
            return None
        return self[name]

    @property
    def num_layers(self) -> int:
        """Blocks of the trunk: the file's count includes draft blocks."""
        return int(self.key("block_count")) - int(self.key("nextn_predict_layers", 0))

    @property
    def eps(self) -> float:
        """Epsilon of every RMS norm."""
        return float(self.key("attention.layer_norm_rms_epsilon"))


def decode(raw: Array, kind: TensorType) -> Array:
    """Block bytes to float32, by the `gguf` package; Q2_0, which it does not know, by its formula."""
    blocks = raw.reshape(-1, kind.block_bytes)
    if kind != TensorType.Q2_0:
        return gguf.dequantize(blocks, gguf.GGMLQuantizationType(kind.value)).reshape(-1)
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return (scale * (codes.reshape(len(blocks), 64).astype(np.float32) - 1)).reshape(-1)
