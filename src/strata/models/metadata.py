"""Numbers of an architecture under its own prefix, and the rotary settings that all architectures share."""

from dataclasses import dataclass

import numpy as np

from strata.errors import ModelFileError, UnsupportedError
from strata.gguf import ModelFile
from strata.models.weights import WeightReader
from strata.ops import Buffer, RopeScaling, rope_table

MAX_CONTEXT = 2**24  # as --max-context
MAX_REAL = 1e30
MIN_THETA = 1.0 + 1e-6  # a base of 1 turns all pairs alike, and YaRN divides by its logarithm


@dataclass(frozen=True)
class Metadata:
    """Reads `<architecture>.<key>` of a file."""

    file: ModelFile
    architecture: str

    @classmethod
    def of(cls, file: ModelFile) -> "Metadata":
        """With the prefix that `general.architecture` gives."""
        return cls(file, file.get("general.architecture", str))

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.file.metadata

    def whole(self, key: str, *default: int) -> int:
        """A whole number; ModelFileError when it is missing and has no default."""
        return self.file.get(f"{self.architecture}.{key}", int, *default)

    def positive(self, key: str, *default: int) -> int:
        """As `whole`, at least 1."""
        found = self.whole(key, *default)
        if found < 1:
            raise ModelFileError(
                f"{self.file.path}: {self.architecture}.{key} is {found}; it must be positive"
            )
        return found

    def real(self, key: str, *default: float, low: float = 0.0, high: float = MAX_REAL) -> float:
        """A number from `low` to `high`; ModelFileError otherwise, so that a NaN or a zero stops here."""
        found = self.file.get(f"{self.architecture}.{key}", float, *default)
        if not low <= found <= high:
            raise ModelFileError(
                f"{self.file.path}: {self.architecture}.{key} is {found:g}; it must be from {low:g} to {high:g}"
            )
        return found

    def context(self, key: str, *default: int) -> int:
        """A count of positions that tables can be made for."""
        found = self.positive(key, *default)
        if found > MAX_CONTEXT:
            raise ModelFileError(
                f"{self.file.path}: {self.architecture}.{key} is {found}; at most {MAX_CONTEXT} can be served"
            )
        return found

    def numbers(self, key: str) -> tuple[int, ...]:
        """An array of whole numbers; empty when missing."""
        found = self.file.get(f"{self.architecture}.{key}", np.ndarray, np.zeros(0, np.int64))
        return tuple(int(x) for x in found)


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding as a file states it."""

    dim: int
    theta: float
    scaling: RopeScaling
    sections: tuple[int, ...]
    max_position: int  # trained, or what scaling reaches

    @classmethod
    def read(cls, m: Metadata, head_dim: int) -> "RopeConfig":
        """`rope.*`: dimension count, base, sections, and linear or YaRN scaling past the trained context."""
        dim, context = _rotary_dim(m, head_dim), m.context("context_length")
        scaling = _read_scaling(m, dim, context)
        reach = int(scaling.factor * scaling.original_context) if scaling.kind != "none" else context
        return cls(
            dim=dim,
            theta=m.real("rope.freq_base", 10_000.0, low=MIN_THETA),
            scaling=scaling,
            sections=m.numbers("rope.dimension_sections"),
            max_position=min(max(reach, context), MAX_CONTEXT),
        )

    def table(self, max_positions: int) -> Buffer:
        """The rotary table for a context of `max_positions`."""
        return rope_table(max_positions, self.dim, self.theta, self.scaling)


def _rotary_dim(m: Metadata, head_dim: int) -> int:
    """How many values of a head rotate, in pairs."""
    dim = m.positive("rope.dimension_count", head_dim)
    if dim % 2 or dim > head_dim:
        raise ModelFileError(
            f"{m.file.path}: rope rotates {dim} values of heads that have {head_dim}; it must be an even part"
        )
    return dim


def _read_scaling(m: Metadata, dim: int, context: int) -> RopeScaling:
    """linear, yarn, or llama3 (whose divisors a file carries as `rope_freqs.weight`)."""
    kind = m.file.get(f"{m.architecture}.rope.scaling.type", str, "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedError(
            f"{m.file.path}: rope scaling {kind!r}; supported: none, linear, yarn, llama3 factors"
        )
    factors = WeightReader(m.file).maybe("rope_freqs.weight", dim // 2)
    return RopeScaling(
        kind=kind,
        factor=m.real("rope.scaling.factor", 1.0, low=1e-3, high=1e6),
        original_context=m.context("rope.scaling.original_context_length", context),
        attention_factor=m.real("rope.scaling.attn_factor", 1.0, low=1e-3, high=1e6),
        factors=None if factors is None else np.asarray(factors.decode(), np.float32),
    )
