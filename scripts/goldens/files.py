"""A case's state as GGUF: types chosen, values stored, and what that lost put back into the state."""

import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scripts.goldens.cases import Array, Case
from scripts.goldens.layout import gguf_layout, stored_value
from scripts.goldens.metadata import metadata
from scripts.goldens.storage import encode

from oracles.model import decode
from strata.gguf import TensorType, write_model

Stored = dict[str, tuple[TensorType, Array, Array]]
"""Type, rows-first shape and bytes by GGUF name."""
ALWAYS_F32 = re.compile(r"norm|ssm_a$|ssm_dt|conv1d|ffn_gate_inp|rope_freqs|bias")


def storage_type(case: Case, name: str) -> TensorType:
    """The first pattern of the case that is found in the name decides."""
    if not ALWAYS_F32.search(name):
        for pattern, kind in case.types.items():
            if re.search(pattern, name):
                return TensorType[kind]
    return TensorType.F32


def store(case: Case, state: dict[str, Array]) -> tuple[Stored, dict[str, Array]]:
    """Tensors by GGUF name, and the state with the values that their bytes hold."""
    layout = gguf_layout(case, state)
    flat = np.concatenate([value.reshape(-1) for value in state.values()])
    sources, start = {}, 0
    for name, value in state.items():
        sources[name] = np.arange(start, start + value.size).reshape(value.shape)
        start += value.size
    places, tensors = gguf_layout(case, sources), {}
    for index, (name, values) in enumerate(layout.items()):
        kind = storage_type(case, name)
        raw = encode(stored_value(case, name, values), kind, case.seed * 1000 + index)
        tensors[name] = (kind, np.array(values.shape), raw)
        if kind != TensorType.F32:
            flat[places[name].reshape(-1)] = decode(raw, kind).reshape(-1)
    return tensors, {name: flat[where] for name, where in sources.items()}


def write(
    case: Case,
    path: Path,
    tensors: Stored,
    constants: dict[str, Array],
    draft: str | None,
) -> None:
    """`draft`: None leaves the draft block out, "inside" has it beside the trunk, "separate" has it alone."""
    own = f"blk.{case.num_layers}."

    def wanted(name: str) -> bool:
        return draft == "inside" or name.startswith(own) == (draft == "separate")

    specs = [
        (name, tuple(int(n) for n in shape[::-1]), kind, raw)
        for name, (kind, shape, raw) in tensors.items()
        if wanted(name)
    ]
    if case.config["rope_parameters"]["rope_type"] == "llama3":
        divisors = np.array(list(_llama3_divisors(case)), "<f4")
        specs.append(("rope_freqs.weight", divisors.shape, TensorType.F32, divisors.view(np.uint8)))
    write_model(path, metadata(case, constants, draft), specs)


def _llama3_divisors(case: Case) -> Iterable[float]:
    """What the frequency of each pair is divided by (the rope scaling of Llama 3.1)."""
    p, dim = case.config["rope_parameters"], case.config["head_dim"]
    original, low, high = p["original_max_position_embeddings"], p["low_freq_factor"], p["high_freq_factor"]
    for pair in range(dim // 2):
        turns = original / (2 * math.pi * p["rope_theta"] ** (2 * pair / dim))
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        yield 1 / (share + (1 - share) / p["factor"])
