"""Products of prompt chunks with expanded weights have the bits of the contract's NumPy text on the emulated device."""

import ctypes
from typing import Any

import numpy as np
import pytest
from emulator import Memory, Module, check_memory, launch
from numpy.typing import NDArray

from strata.ops.linear import contract_product
from strata.ops.op import Q8
from strata.ops.quantize import quantize_rows
from strata.quants import FORMATS
from benchmarks.contract.pack import BLOCK, pack, random_rows

TABLE_WORDS = {"IQ3_XXS": 256, "IQ2_S": 2048}


def ints(*values: int) -> list[ctypes.c_int]:
    return [ctypes.c_int(v) for v in values]


def run_wide(name: str, n: int, k: int, count: int, seed: int, parts: int = 2) -> tuple[Any, Any]:
    raw = random_rows(name, n, k, 5)
    x = np.random.default_rng(6).standard_normal((count, k)).astype(np.float32)
    q8: Q8 = quantize_rows(x)
    packed = pack(name, raw)
    rows, tokens, padded = -(-n // 128) * 128, -(-count // (64 * parts)) * 64 * parts, -(-k // 64) * 2
    fmt = FORMATS[name]
    form = fmt.integer_form(raw, n, k)
    text = f'#define STRATA_TYPE QuantType::{name}\n#include "widen.cu"\n'
    widen = Module(text)
    w = Memory(packed.nbytes).put(packed)
    codes, scales, subs, mins, pairs = (Memory(s) for s in (rows * padded * 32, *(rows * padded * 8,) * 4))
    shared = 4 * TABLE_WORDS.get(name, 0)
    grid = -(-rows * padded // 256)
    launch(widen.kernel("expand_weights"), (grid,), (256,), [w.arg, codes.arg, scales.arg, subs.arg, mins.arg, pairs.arg, *ints(n, rows, k)], shared, seed)
    live = Memory(4).put(np.array([count], np.int32))
    planes = [Memory(a.nbytes).put(np.ascontiguousarray(a)) for a in q8]
    wide, d, sums = Memory(tokens * padded * 64), Memory(tokens * padded * 4), Memory(tokens * padded * 4)
    args = [live.arg, *(p.arg for p in planes), wide.arg, d.arg, sums.arg, *ints(tokens, k, 1)]
    launch(widen.kernel("widen_rows"), (-(-tokens * padded * 2 // 256),), (256,), args, 0, seed)
    halves = int(form.halves and not form.scale16)
    macros = {"SUB": 1 + int(form.scale16), "ROW_GROUPS": 2, "TOKEN_GROUPS": 1, "HALVES": halves, "TERMS": 2 if name == "Q6_K" else 1, "MIN": int(form.mins is not None), "PARTS": parts, "STAGES": 3}
    module = Module("".join(f"#define STRATA_{m} {v}\n" for m, v in macros.items()) + '#include "wide_linear.cu"\n')
    y = Memory(count * n * 4)
    args = [live.arg, codes.arg, scales.arg, subs.arg, mins.arg, pairs.arg, wide.arg, d.arg, sums.arg, y.arg, *ints(n, rows, tokens, k)]
    launch(module.kernel("wide_linear"), (rows // 128 * (tokens // (64 * parts)),), (256,), args, module.number("wide_linear_shared"), seed)
    check_memory()
    return y.get((count, n), np.float32), contract_product(q8, form)


@pytest.mark.parametrize("name", BLOCK)
def test_wide(name: str) -> None:
    got, expected = run_wide(name, 150, 768, 70, 2)
    assert (got.view(np.int32) == expected.view(np.int32)).all()
