"""Which type a tensor gets: by its purpose, its row length and what was asked for."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from strata.convert.checkpoint import Floats
from strata.convert.rows import Plane, Planned
from strata.errors import UsageError
from strata.gguf import TensorType
from strata.quants import FORMATS

TYPES = (
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "IQ4_NL",
    "Q2_0",
    "Q4_K",
    "Q6_K",
    "IQ3_XXS",
)
# `general.file_type`, from llama.cpp's llama_ftype; Q2_0 has no number there.
FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q4_K": 15,
    "Q6_K": 18,
    "IQ3_XXS": 23,
    "IQ4_NL": 25,
    "BF16": 32,
}
# Taken instead where rows are not whole blocks: of about the same width, and never narrower.
_FALLBACK = {"Q4_K": "IQ4_NL", "Q6_K": "Q8_0", "Q2_0": "IQ4_NL", "IQ3_XXS": "IQ4_NL"}
_FLOATS = ("F32", "F16", "BF16")


def parse_type(name: str, option: str = "--type") -> str:
    """A type's own spelling; UsageError names the ones there are."""
    found = name.upper()
    if found not in TYPES:
        raise UsageError(f"{option} is {name!r}; it must be one of {', '.join(TYPES)}")
    return found


Overrides = Sequence[tuple[str, str]]
"""Patterns of tensor names (as of file names) and their types; the first that fits counts."""


def parse_override(text: str) -> tuple[str, str]:
    """PATTERN=TYPE."""
    pattern, sign, name = text.rpartition("=")
    if not sign or not pattern:
        raise UsageError(
            f"--tensor-type is {text!r}; it must be PATTERN=TYPE, such as '*ffn_down_exps*=Q2_0'"
        )
    return pattern, parse_type(name, "--tensor-type")


def choose_type(tensor: Planned, wanted: str, overrides: Overrides = ()) -> TensorType:
    """The type for `wanted`, unless an override names another. F32 keeps everything F32.

    UsageError where an override's blocks do not fill the rows.
    """
    k = tensor.rows.shape[-1]
    named = next((name for pattern, name in overrides if fnmatchcase(tensor.name, pattern)), None)
    if named is not None:
        kind = TensorType[named]
        if k % kind.block_values:
            raise UsageError(
                f"--tensor-type: {tensor.name} has rows of {k} values, not whole blocks of "
                f"{kind.block_values} ({named})"
            )
        return kind
    if wanted == "F32" or tensor.plane is Plane.FLOAT or len(tensor.rows.shape) < 2:
        return TensorType.F32
    if tensor.plane is Plane.INDEXER:
        return TensorType.BF16
    return TensorType[_fitting(_by_plane(tensor.plane, wanted), k)]


def _by_plane(plane: Plane, wanted: str) -> str:
    """Planes that every token passes through, and small ones, keep more bits than experts."""
    if wanted in _FLOATS:
        return wanted
    bits = TensorType[wanted].bits
    if plane is Plane.HEAD and bits < TensorType.Q6_K.bits:
        return "Q6_K"
    if plane is Plane.MIXER:
        return "Q8_0"
    if plane is Plane.TABLE and TensorType[wanted].block_values != 32:
        return "Q8_0" if bits > TensorType.Q5_1.bits else "IQ4_NL"
    return wanted


def _fitting(name: str, k: int) -> str:
    """`name`, or the first fallback whose blocks fill rows of k values."""
    while k % TensorType[name].block_values:
        name = _FALLBACK.get(name, "BF16")
    return name


def encoded(
    kind: TensorType, pieces: Iterator[Floats], threads: int, weights: Floats | None = None
) -> Iterator[NDArray[np.uint8]]:
    """Pieces of [.., k] as bytes, in order; at most `threads` + 1 are held at once.

    `weights` [rows or 1, k]: how much squared errors count.
    """
    pending: deque[Future[NDArray[np.uint8]]] = deque()
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        for piece in pieces:
            rows = piece.size // piece.shape[-1]
            part = weights if weights is None or len(weights) == 1 else weights[done : done + rows]
            done += rows
            pending.append(pool.submit(_encode, kind, piece, part))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _encode(kind: TensorType, piece: Floats, weights: Floats | None) -> NDArray[np.uint8]:
    flat = np.ascontiguousarray(piece).reshape(-1, piece.shape[-1])
    return FORMATS[kind.name].encode(flat, weights)
