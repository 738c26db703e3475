"""Tiny models of any family: every tensor random, none at a value that would hide a fault."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from strata.gguf import TensorType, write_model
from strata.synth.blocks import Bytes, Pool, fitting_type, random_pieces
from strata.synth.geometry import Geometry
from strata.synth.layout import PLANES, Fill, Tensor, tensors
from strata.synth.metadata import metadata


@dataclass(frozen=True)
class TinyOptions:
    """Sizes, types by plane (F32 where not named) and seed."""

    geometry: Geometry
    types: dict[str, str] = field(default_factory=dict)
    seed: int = 1


def write_tiny(path: str | Path, options: TinyOptions) -> None:
    """Write the model; values are drawn tensor by tensor, so a change to one leaves the others."""
    g = options.geometry.checked()
    pool, specs = Pool(options.seed, 1 << 20), []
    for i, tensor in enumerate(tensors(g)):
        kind = fitting_type(options.types.get(tensor.plane, "F32"), tensor.ne[0])
        if tensor.plane == "float":
            kind = TensorType.F32
        rng = np.random.default_rng([options.seed, i])
        specs.append((tensor.name, tensor.ne, kind, _fill(pool, tensor, kind, rng)))
    write_model(path, metadata(g, f"tiny {g.arch}", 0), specs)


def _fill(pool: Pool, t: Tensor, kind: TensorType, rng: np.random.Generator) -> Bytes:
    """Norms near 1, decays between -e and -1/e, matrices that keep the size of what they multiply."""
    count = int(np.prod(t.ne))
    if t.fill is Fill.NORM:
        return _bytes(1 + 0.2 * rng.standard_normal(count))
    if t.fill is Fill.DECAY:
        return _bytes(-np.exp(rng.uniform(-1, 1, count)))
    if t.fill is Fill.STEP_BIAS:
        return _bytes(0.5 * rng.standard_normal(count))
    std = 1.0 if t.fill is Fill.EMBEDDING else min(0.5, t.ne[0] ** -0.5)
    return np.concatenate([piece.reshape(-1) for _, piece in random_pieces(pool, kind, count, std, rng)])


def _bytes(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Bytes:
    return x.astype(np.float32).view(np.uint8)


def uniform_types(name: str) -> dict[str, str]:
    """One type for all planes but those that stay float."""
    return {plane: name for plane in PLANES if plane not in ("float", "indexer", "mixer")}
