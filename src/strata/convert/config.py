"""`config.json` of a checkpoint: typed look-ups, the text part of multimodal models, rope and layer kinds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from strata.convert.checkpoint import read_json
from strata.errors import ModelFileError, UnsupportedError

T = TypeVar("T")
_REQUIRED: Any = object()


@dataclass(frozen=True)
class Config:
    """Settings of the text model; `outer` is the whole file, for ids of images."""

    path: Path
    values: Mapping[str, Any]
    outer: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        """The text model's type, such as qwen3_5_moe_text."""
        return self.get("model_type", str)

    def get(self, name: str, kind: type[T], default: T = _REQUIRED) -> T:
        """A setting of `kind`; null counts as missing. An int passes for a float."""
        value = self.values.get(name)
        if value is None:
            if default is _REQUIRED:
                raise ModelFileError(f"{self.path}: has no {name!r}")
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise ModelFileError(f"{self.path}: {name} is {value!r}, expected {kind.__name__}")
        return value

    def whole(self, name: str, default: int = _REQUIRED) -> int:
        """A positive integer."""
        value = self.get(name, int, default)
        if value < 1:
            raise ModelFileError(f"{self.path}: {name} is {value}, expected a positive number")
        return value

    def token(self, name: str) -> int | None:
        """A token id; the first where the file has several."""
        value = self.values.get(name, self.outer.get(name))
        value = value[0] if isinstance(value, list) and value else value
        return value if type(value) is int else None

    @property
    def rope(self) -> dict[str, Any]:
        """Rope settings under one shape: newer files have `rope_parameters`, older ones several keys."""
        found = dict(self.values.get("rope_scaling") or {}) | dict(self.values.get("rope_parameters") or {})
        found["rope_type"] = found.get("rope_type", found.get("type", "default"))
        found.setdefault("rope_theta", self.values.get("rope_theta", 10_000.0))
        found.setdefault("partial_rotary_factor", self.values.get("partial_rotary_factor", 1.0))
        return found

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.whole("head_dim", self.whole("hidden_size") // self.whole("num_attention_heads"))

    @property
    def layer_types(self) -> list[str]:
        """linear_attention or full_attention per layer; unlisted, from the interval."""
        layers = self.whole("num_hidden_layers")
        listed = self.values.get("layer_types")
        if listed is None:
            interval = self.whole("full_attention_interval", 4)
            return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
        if len(listed) != layers:
            raise ModelFileError(f"{self.path}: layer_types has {len(listed)} entries for {layers} layers")
        kinds = ["full_attention" if kind == "indexed_attention" else kind for kind in listed]
        if unknown := set(kinds) - {"linear_attention", "full_attention"}:
            raise UnsupportedError(f"{self.path}: layer types {sorted(unknown)} are not supported")
        return kinds


def read_config(directory: str | Path) -> Config:
    """`config.json` of a checkpoint directory."""
    path = Path(directory) / "config.json"
    outer = read_json(path)
    text = outer.get("text_config")
    # The outer file may hold what the text part leaves out, such as tie_word_embeddings.
    values = {**outer, **text} if isinstance(text, dict) else outer
    return Config(path, values, outer)
