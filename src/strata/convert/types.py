"""Which type a tensor gets: by its purpose, its row length and what was asked for."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from strata.convert.checkpoint import Floats
from strata.convert.rows import Plane, Planned
from strata.errors import UsageError
from strata.gguf import TensorType
from strata.quants import FORMATS

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q2_0", "Q4_K", "Q6_K")
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
    "IQ4_NL": 25,
    "BF16": 32,
}
# Taken instead where rows are not whole blocks: of about the same width, and never narrower.
_FALLBACK = {"Q4_K": "IQ4_NL", "Q6_K": "Q8_0", "Q2_0": "IQ4_NL"}
_FLOATS = ("F32", "F16", "BF16")


def parse_type(name: str) -> str:
    """A type's own spelling; UsageError names the ones there are."""
    found = name.upper()
    if found not in TYPES:
        raise UsageError(f"--type is {name!r}; it must be one of {', '.join(TYPES)}")
    return found


def choose_type(tensor: Planned, wanted: str) -> TensorType:
    """The type for `wanted`. F32 keeps everything F32."""
    k = tensor.rows.shape[-1]
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


def encoded(kind: TensorType, pieces: Iterator[Floats], threads: int) -> Iterator[NDArray[np.uint8]]:
    """Pieces of [.., k] as bytes, in order; at most `threads` + 1 are held at once."""
    pending: deque[Future[NDArray[np.uint8]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for piece in pieces:
            pending.append(pool.submit(_encode, kind, piece))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _encode(kind: TensorType, piece: Floats) -> NDArray[np.uint8]:
    return FORMATS[kind.name].encode(np.ascontiguousarray(piece))
