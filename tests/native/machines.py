"""Runs kernels on every instruction set and thread count; the exact float steps that tests build on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata import _native

Array = NDArray[Any]
THREADS = (1, 2)
POOLS = {n: _native.ThreadPool(n) for n in THREADS}


@contextmanager
def instruction_set(level: str) -> Iterator[None]:
    before = _native.isa_level()
    _native.set_isa(level)
    try:
        yield
    finally:
        _native.set_isa(before)


def run_kernel(
    kind: str, ptrs: Sequence[Array], dims: Sequence[int], scalars: Sequence[float] = (), threads: int = 1
) -> int:
    """One op on the active instruction set; returns its fault bits. Arrays are used in place."""
    for array in ptrs:
        assert array.flags.c_contiguous
    program = _native.Program(POOLS[threads])
    program.add(kind, [a.ctypes.data for a in ptrs], list(dims), list(scalars))
    return program.run(0, 1)


def run_everywhere(
    kind: str,
    ptrs: Sequence[Array],
    dims: Sequence[int],
    scalars: Sequence[float] = (),
    *,
    outputs: Sequence[int] = (-1,),
    fault: int = 0,
) -> list[Array]:
    """Outputs of the op, after checking that every instruction set and thread count gives these very bits."""
    first: list[Array] | None = None
    for level in _native.isa_levels():
        for threads in THREADS:
            with instruction_set(level):
                arrays = list(ptrs)
                for i in outputs:
                    arrays[i] = ptrs[i].copy()
                assert run_kernel(kind, arrays, dims, scalars, threads) == fault, (level, threads)
            results = [arrays[i] for i in outputs]
            first = first or results
            for got, expected in zip(results, first, strict=True):
                assert same_bits(got, expected), f"{kind} differs on {level} with {threads} threads"
    assert first is not None
    return first


def same_bits(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def count(n: int) -> Array:
    """A live-row count as kernels read it."""
    return np.array([n], np.int32)


def nudge(x: Array) -> Array:
    """x with its middle element a little larger: the planted fault."""
    y = x.copy()
    flat = y.reshape(-1)
    flat[flat.size // 2] += np.float32(0.01)
    return y


def fma(a: Array, b: Array, c: Array) -> Array:
    """C's fmaf, broadcast."""
    a, b, c = (np.ascontiguousarray(v, np.float32) for v in np.broadcast_arrays(a, b, c))
    out = np.empty_like(a)
    _native.fmaf(a.ctypes.data, b.ctypes.data, c.ctypes.data, out.ctypes.data, out.size)
    return out


def apply(name: str, x: Array, dtype: Any = np.float32) -> Array:
    """A contract function over an array."""
    x = np.ascontiguousarray(x)
    out = np.empty(x.shape, dtype)
    _native.apply(name, x.ctypes.data, out.ctypes.data, x.size)
    return out


def tree(lanes: Array, width: int = 32) -> Array:
    """Sum over the first axis of 32 lanes, halves 16, 8, 4, 2, 1 apart."""
    while width > 1:
        width //= 2
        lanes = lanes[:width] + lanes[width : 2 * width]
    return lanes[0]


def lane_dot(a: Array, b: Array, lanes: int = 32) -> Array:
    """Sum over the first axis of a * b: element i by fma into lane i mod 32, then the tree."""
    a, b = np.broadcast_arrays(a, b)
    acc = np.zeros((lanes, *a.shape[1:]), np.float32)
    for i in range(0, len(a), lanes):
        n = min(lanes, len(a) - i)
        acc[:n] = fma(a[i : i + n], b[i : i + n], acc[:n])
    return tree(acc, lanes)


def random_rows(rows: int, width: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)
