"""Builds and binds `cpu.cpp`: the contract's CPU forms behind ctypes."""

import ctypes
import importlib.util
import subprocess
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
TYPE_ID = {"Q6_K": 14, "Q4_K": 12, "IQ3_XXS": 18, "IQ2_S": 22, "NVFP4": 40, "Q2_0": 42}
FLAGS = [
    "-O3",
    "-std=c++20",
    "-fPIC",
    "-shared",
    "-pthread",
    "-ffp-contract=off",
    "-march=native",
    "-Wall",
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]


def build(source: str = "cpu.cpp", out: Path | None = None) -> ctypes.CDLL:
    """Compiles a source of this folder for this machine and loads it."""
    out = out or Path(tempfile.mkdtemp()) / (Path(source).stem + ".so")
    here = ROOT / "benchmarks/contract"
    folders = (
        ROOT / "native/include",
        ROOT / "native/cpu/simd",
        ROOT / "src/strata/backends/cuda/kernels",
        here,
    )
    include = [f"-I{p}" for p in folders]
    subprocess.run(["g++", *FLAGS, *include, "-o", str(out), str(here / source)], check=True)
    return ctypes.CDLL(str(out))


def arithmetic() -> ModuleType:
    """`strata.ops.arithmetic` by its file, so that machines without the built package can use it."""
    spec = importlib.util.spec_from_file_location(
        "contract_arithmetic", ROOT / "src/strata/ops/arithmetic.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pointer(a: NDArray) -> ctypes.c_void_p:
    """Address of an array that the caller keeps alive."""
    return ctypes.c_void_p(a.ctypes.data)


class Cpu:
    """The library's functions on NumPy arrays."""

    def __init__(self) -> None:
        self.lib = build()
        self.lib.contract_sweep.restype = ctypes.c_double
        self.lib.contract_read.restype = ctypes.c_double

    def quantize(self, x: NDArray[np.float32]) -> tuple[NDArray, NDArray, NDArray]:
        """Codes int8 [rows, k], scales float32 [rows, k / 32], sums int16 [rows, k / 16] of x [rows, k]."""
        rows, k = x.shape
        q, d = np.empty((rows, k), np.int8), np.empty((rows, k // 32), np.float32)
        sums = np.empty((rows, k // 16), np.int16)
        self.lib.contract_quantize(pointer(x), rows, k, pointer(q), pointer(d), pointer(sums))
        return q, d, sums

    def product(
        self, form: str, name: str, w: NDArray[np.uint8], n: int, q8: tuple[NDArray, NDArray, NDArray]
    ) -> NDArray:
        """[rows, n] by form "reference" (w: GGUF rows) or "packed" (w: packed bytes)."""
        q, d, sums = q8
        y = np.empty((len(q), n), np.float32)
        run = getattr(self.lib, f"contract_{form}")
        run(
            TYPE_ID[name],
            pointer(w),
            n,
            q.shape[1],
            pointer(q),
            pointer(d),
            pointer(sums),
            len(q),
            pointer(y),
        )
        return y

    def map(self, function: int, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """0 exp, 1 log, 2 sigmoid, 3 silu, 4 softplus of every x."""
        y = np.empty_like(x)
        self.lib.contract_map(function, pointer(x), ctypes.c_int64(x.size), pointer(y))
        return y

    def sweep(
        self, name: str, free: bool, w: NDArray, copies: int, n: int, k: int, q8: tuple, threads: int
    ) -> float:
        """Seconds to multiply `copies` matrices laid one after another in w."""
        q, d, sums = q8
        y = np.empty(n, np.float32)
        size = ctypes.c_int64(w.nbytes // copies)
        return self.lib.contract_sweep(
            TYPE_ID[name],
            int(free),
            pointer(w),
            size,
            copies,
            n,
            k,
            pointer(q),
            pointer(d),
            pointer(sums),
            threads,
            pointer(y),
        )

    def read(self, w: NDArray, threads: int) -> float:
        """Seconds to read w once."""
        sink = ctypes.c_uint64()
        return self.lib.contract_read(pointer(w), ctypes.c_int64(w.nbytes), threads, ctypes.byref(sink))
