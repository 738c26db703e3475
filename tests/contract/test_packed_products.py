"""Packed AVX-512 products have the bits of the contract's NumPy text."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from benchmarks.contract.cpu import TYPE_ID, pointer
from benchmarks.contract.pack import BLOCK, pack, random_rows
from numpy.typing import NDArray

from strata.ops.linear import contract_product
from strata.ops.op import Q8
from strata.ops.quantize import quantize_rows
from strata.quants import FORMATS

ROOT = Path(__file__).resolve().parents[2]
ISA = [
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vbmi",
    "avx512vnni",
    "avx512bitalg",
    "avx512vpopcntdq",
]
Product = Callable[[str, NDArray[np.uint8], int, Q8], NDArray[np.float32]]


@pytest.fixture(scope="module")
def packed_product(tmp_path_factory: pytest.TempPathFactory) -> Product:
    """(type, packed weights, n, q8 rows) -> [rows, n]."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    out = tmp_path_factory.mktemp("packed") / "packed.so"
    flags = [
        "-O1",
        "-std=c++20",
        "-fPIC",
        "-shared",
        "-ffp-contract=off",
        "-mfma",
        "-mf16c",
        *(f"-m{i}" for i in ISA),
    ]
    include = [f"-I{ROOT / p}" for p in ("native/include", "native/cpu/simd")]
    subprocess.run(["g++", *flags, *include, "-o", out, Path(__file__).parent / "packed.cpp"], check=True)
    library = ctypes.CDLL(str(out))
    if not library.supported():
        pytest.skip(f"this CPU lacks one of {', '.join(ISA)}")

    def product(name: str, w: NDArray[np.uint8], n: int, x: Q8) -> NDArray[np.float32]:
        rows, k = x.codes.shape
        y = np.full((rows, n), np.nan, np.float32)
        planes = (np.ascontiguousarray(a) for a in (x.codes, x.scales, x.sums))
        q, d, sums = planes
        library.product(
            TYPE_ID[name], pointer(w), n, k, pointer(q), pointer(d), pointer(sums), rows, pointer(y)
        )
        return y

    return product


def case(name: str, k: int) -> tuple[NDArray[np.uint8], Q8, NDArray[np.float32]]:
    """(GGUF rows [32, ..], three q8 rows, the contract's product)."""
    raw = random_rows(name, 32, k, 5)
    x = np.random.default_rng(6).standard_normal((3, k)).astype(np.float32)
    x[1] *= 100
    q8 = quantize_rows(x)
    return raw, q8, contract_product(q8, FORMATS[name].integer_form(raw, len(raw), k))


@pytest.mark.parametrize("name", BLOCK)
@pytest.mark.parametrize("k", [256, 768, 2560])
def test_packed_equals_numpy(packed_product: Product, name: str, k: int) -> None:
    raw, x, expected = case(name, k)
    got = packed_product(name, pack(name, raw), len(raw), x)
    assert (got.view(np.int32) == expected.view(np.int32)).all()


@pytest.mark.parametrize("name", ["Q2_0", "NVFP4"])
@pytest.mark.parametrize("k", [64, 576, 640, 704])
def test_short_last_chunk(packed_product: Product, name: str, k: int) -> None:
    raw, x, expected = case(name, k)
    got = packed_product(name, pack(name, raw), len(raw), x)
    assert (got.view(np.int32) == expected.view(np.int32)).all()


def test_one_wrong_bit_of_a_weight_is_seen(packed_product: Product) -> None:
    raw, x, expected = case("IQ3_XXS", 768)
    raw[7, 20] ^= 1
    got = packed_product("IQ3_XXS", pack("IQ3_XXS", raw), len(raw), x)
    assert (got[:, 7].view(np.int32) != expected[:, 7].view(np.int32)).all()
    assert (np.delete(got, 7, 1) == np.delete(expected, 7, 1)).all()
