"""The products' kernels, dp4a and tensor cores, have the bits of the contract's NumPy text on the emulated device."""

import ctypes
from typing import Any

import numpy as np
import pytest
from benchmarks.contract.pack import BLOCK, pack, random_rows
from emulator import Memory, Module, check_memory, launch
from numpy.typing import NDArray

from strata.ops.linear import contract_product
from strata.ops.op import Q8
from strata.ops.quantize import quantize_rows
from strata.quants import FORMATS

K, N, ROWS = 768, 70, 19
TABLE_WORDS = {"IQ3_XXS": 256, "IQ2_S": 2048}
PARAMETERS = "const uint8_t* w, int n, const int8_t* q, const float* d, const int16_t* s, int rows, float* y"
SOURCE = """
#include "gemm.cuh"
#include "gemv.cuh"
using namespace strata;
using Tiles = Gemm<QuantType::{name}, {blocks}, 2, 1, 2>;
extern "C" __global__ void one({parameters}) {{ gemv<QuantType::{name}, {k}, 1, 1>(w, n, q, d, s, rows, y); }}
extern "C" __global__ void four({parameters}) {{ gemv<QuantType::{name}, {k}, 4, 1>(w, n, q, d, s, rows, y); }}
extern "C" __global__ void tiles({parameters}) {{
  const int row = static_cast<int>(blockIdx.x) * Tiles::kRows, token = static_cast<int>(blockIdx.y) * Tiles::kTokens;
  Tiles::run({{w, q, d, s, y, n, rows, row, token}});
}}
extern "C" {{ extern const int tile_bytes = Tiles::kSharedBytes; }}
"""


class Case:
    """A weight of one type and activations on the emulated device."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.raw = random_rows(name, N, K, 5)
        x = np.random.default_rng(6).standard_normal((ROWS, K)).astype(np.float32)
        x[1] *= 100
        self.q8: Q8 = quantize_rows(x)
        packed = pack(name, self.raw)
        self.w = Memory(packed.nbytes).put(packed)
        self.planes = [Memory(a.nbytes).put(np.ascontiguousarray(a)) for a in self.q8]
        self.module = Module(SOURCE.format(name=name, k=K, blocks=K // 32, parameters=PARAMETERS))

    def expected(self) -> NDArray[np.float32]:
        return contract_product(self.q8, FORMATS[self.name].integer_form(self.raw, N, K))

    def run(self, kernel: str, rows: int, grid: tuple[int, ...], threads: int, shared: int, seed: int) -> Any:
        y = Memory(rows * N * 4)
        args = [self.w.arg, ctypes.c_int(N), *(p.arg for p in self.planes), ctypes.c_int(rows), y.arg]
        launch(self.module.kernel(kernel), grid, (threads,), args, shared, seed)
        check_memory()
        return y.get((rows, N), np.float32)


@pytest.fixture(scope="module", params=BLOCK)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.mark.parametrize("rows", [1, 4])
def test_gemv(case: Case, rows: int) -> None:
    shared = 4 * TABLE_WORDS.get(case.name, 0) + 128 * rows * 4 + rows * (K + 64 + K // 4)
    for seed in range(3):
        got = case.run({1: "one", 4: "four"}[rows], rows, (3,), 128, shared, seed)
        assert (got.view(np.int32) == case.expected()[:rows].view(np.int32)).all()


def test_tensor_core_tiles(case: Case) -> None:
    shared = case.module.number("tile_bytes")
    for seed in range(3):
        got = case.run("tiles", ROWS, (2, 2), 64, shared, seed)
        assert (got.view(np.int32) == case.expected().view(np.int32)).all()


def test_one_wrong_bit_is_seen(case: Case) -> None:
    case.w.bytes[5] ^= 1
    got = case.run("tiles", ROWS, (2, 2), 64, case.module.number("tile_bytes"), 0)
    case.w.bytes[5] ^= 1
    differs = (got.view(np.int32) != case.expected().view(np.int32)).any(0)
    assert differs[0]
    assert not differs[1:].any()
