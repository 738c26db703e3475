"""Compiles CUDA C++ with g++ and runs it on fibers (runtime.cpp): kernels' bits and faults without a GPU."""

import ctypes
import hashlib
import os
import re
import subprocess
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = ROOT / "build/emulated"
INCLUDE = [
    HERE / "include/std",
    HERE / "include",
    ROOT / "src/strata/backends/cuda/kernels",
    ROOT / "native/include",
    ROOT / "benchmarks/contract",
]
FLAGS = [
    "-std=c++20",
    "-O1",  # less its slowest passes, which make no kernel faster by as much
    "-fno-tree-pta",
    "-fno-tree-dominator-opts",
    "-fno-ivopts",
    "-g0",
    "-fPIC",
    "-w",
    "-mfma",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",
]
RUNTIME_FLAGS = ["-O3", "-fPIC", "-mavx2", "-mf16c", "-ffp-contract=off"]
CHECKS = ["-fsanitize=bounds,alignment,shift-exponent", "-fsanitize-undefined-trap-on-error"]
KERNEL = re.compile(r'__attribute__\(\(used, visibility\("default"\), noinline\)\)\s*void\s+(\w+)\s*\(')

NO_WATCH, WATCH, ENFORCE = range(3)  # runtime.cpp `Watch`


class EmulatedFault(Exception):
    """A kernel did what a device would report, or would not report and compute nonsense."""


def _build(text: bytes, language: str, flags: list[str]) -> Path:
    """A shared library, kept by the hash of its text and flags."""
    key = hashlib.sha256(text + repr(flags).encode()).hexdigest()[:24]
    kept = CACHE / f"{key}.so"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        command = ["g++", "-x", language, "-", "-shared", "-o", str(part), *flags]
        done = subprocess.run(command, input=text, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[:6000])
        part.rename(kept)
    return kept


@cache
def runtime() -> ctypes.CDLL:
    """The emulated device; one a process."""
    text = (HERE / "runtime.cpp").read_bytes() + (HERE / "copies.cpp").read_bytes()
    library = ctypes.CDLL(str(_build(text, "c++", ["-std=c++20", *RUNTIME_FLAGS])), ctypes.RTLD_GLOBAL)
    library.emulated_alloc.restype = ctypes.c_void_p
    library.emulated_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    library.emulated_free.argtypes = [ctypes.c_void_p]
    library.emulated_free.restype = None
    library.emulated_check.restype = library.emulated_launch.restype = ctypes.c_char_p
    library.emulated_launch.argtypes = [
        *(ctypes.c_void_p,) * 5, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int,
    ]  # fmt: skip
    return library


def preprocess(source: str, arch: int, include: list[Path], headers: dict[str, str]) -> str:
    """The source with everything included, and a caller for each kernel; `headers` replaces files by text."""
    flags = [f"-I{p}" for p in [*include, *INCLUDE]]
    if headers:
        folder = CACHE / hashlib.sha256(repr(sorted(headers.items())).encode()).hexdigest()[:16]
        for name, text in headers.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        flags.insert(0, f"-I{folder}")
    flags += ["-include", "emulated_cuda.h", "-DSTRATA_EMULATED", f"-DSTRATA_ARCH={arch}"]
    done = subprocess.run(
        ["g++", "-E", "-P", "-x", "c++", "-", "-std=c++20", *flags],
        input=source.encode(), capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[:6000])
    text = done.stdout.decode()
    calls = "".join(
        f"void call_{name}(void** p) {{ emulated::call({name}, p); }}\n"
        for name in dict.fromkeys(KERNEL.findall(text))
    )
    mark = "void emulated_touch() { static thread_local volatile char mark; mark = 0; }\n"
    return f'{text}\nextern "C" {{\n{calls}{mark}}}\n'


class Module:
    """A compiled source; `names` are its kernels."""

    def __init__(self, source: str, arch: int = 900, include: list[Path] | None = None,
                 headers: dict[str, str] | None = None, checks: bool = True) -> None:  # fmt: skip
        text = preprocess(source, arch, include or [], headers or {})
        flags = [*FLAGS, *(CHECKS if checks else []), "-fpreprocessed"]
        runtime()
        self.library = ctypes.CDLL(str(_build(text.encode(), "c++", flags)))
        self.names = list(dict.fromkeys(KERNEL.findall(text)))
        self.touch = ctypes.cast(self.library.emulated_touch, ctypes.c_void_p)

    def kernel(self, name: str) -> Any:
        """The address that `launch` takes."""
        if name not in self.names:
            raise KeyError(f"no kernel {name}; there are {', '.join(self.names)}")
        return ctypes.cast(getattr(self.library, f"call_{name}"), ctypes.c_void_p), self.touch

    def number(self, name: str) -> int:
        """The value of a global int."""
        return ctypes.c_int.in_dll(self.library, name).value


def launch(kernel: Any, grid: tuple[int, ...], block: tuple[int, ...], args: list[Any], shared: int = 0,
           seed: int = 0) -> None:  # fmt: skip
    """Runs a kernel once; `args` are ctypes values in order."""
    Call(kernel, grid, block, [(a, ctypes.addressof(a)) for a in args], shared).run(seed)


class Call:
    """A launch with everything converted: `args` are (what to keep alive, address of the value)."""

    def __init__(self, kernel: Any, grid: tuple[int, ...], block: tuple[int, ...], args: list[tuple[Any, int]],
                 shared: int) -> None:  # fmt: skip
        self.kept = [a for a, _ in args]
        pointers = (ctypes.c_void_p * max(len(args), 1))(*(p for _, p in args))
        grid_block = [(ctypes.c_uint * 3)(*(*d, 1, 1)[:3]) for d in (grid, block)]
        self.args = (*kernel, pointers, *grid_block, shared)

    def run(self, seed: int = 0, watch: int = NO_WATCH) -> None:
        """Seed 0: ascending order of lanes, warps and thread blocks, 1: descending, others: shuffled. EmulatedFault on
        what runtime.cpp catches."""
        error = runtime().emulated_launch(*self.args, seed, watch)
        if error is not None:
            raise EmulatedFault(error.decode())


def check_memory() -> None:
    """EmulatedFault where bytes round an allocation were written."""
    error = runtime().emulated_check()
    if error is not None:
        raise EmulatedFault(error.decode())


class Memory:
    """Device memory, 0xff all over unless `zeroed`; its end lies against a page that faults."""

    def __init__(self, size: int, align: int = 64, zeroed: bool = False) -> None:
        self.size = size
        self.pointer = runtime().emulated_alloc(max(size, 1), align, int(not zeroed))
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * max(size, 1)).from_address(self.pointer))

    def put(self, data: np.ndarray, offset: int = 0) -> "Memory":
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.bytes[offset : offset + raw.size] = raw
        return self

    def get(self, shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.bytes[offset : offset + count].copy().view(dtype).reshape(shape)

    def free(self) -> None:
        del self.bytes
        runtime().emulated_free(self.pointer)

    @property
    def arg(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.pointer)
