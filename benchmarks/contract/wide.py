"""Products of prompt chunks on one GPU: bits against the other forms, TOPS by format, shape and variant.

Usage: python -m benchmarks.contract.wide [--types A,B] [--rows 512,2048,8192] [--out FILE.json]
"""

import argparse
import json
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.contract import harness, products

from strata.backends.cuda.compile import INCLUDE
from strata.ops.linear import contract_product
from strata.ops.op import Q8
from strata.ops.quantize import quantize_rows
from strata.quants import FORMATS

harness.INCLUDE[:] = [*INCLUDE, harness.ROOT / "benchmarks/contract"]  # the installed kernels
HALVES, MIN = ("Q6_K", "IQ2_S"), ("Q4_K",)
THREADS = 256


class Cpu:
    """The contract's NumPy text, where the CPU forms of this folder are asked for."""

    @staticmethod
    def quantize(x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(np.ascontiguousarray(p) for p in quantize_rows(x))

    @staticmethod
    def product(name: str, raw: np.ndarray, n: int, k: int, q8: tuple[np.ndarray, ...]) -> np.ndarray:
        return contract_product(Q8(*q8), FORMATS[name].integer_form(raw, n, k))


def source(file: str, **macros: Any) -> str:
    return "".join(f"#define STRATA_{m} {v}\n" for m, v in macros.items()) + f'#include "{file}"\n'


def wide_source(
    name: str, parts: int, stages: int, rg: int = 2, tg: int = 1, probe: str = "", terms: int = 0
) -> str:
    terms = terms or (2 if name == "Q6_K" else 1)
    return source("wide_linear.cu", SUB=1 + (name == "NVFP4"), HALVES=int(name in HALVES), TERMS=terms,
                  MIN=int(name in MIN), PARTS=parts, STAGES=stages, ROW_GROUPS=rg, TOKEN_GROUPS=tg)  # fmt: skip


def wide_headers(probe: str = "", **_: Any) -> dict[str, str] | None:
    """What a probe leaves out of wide.cuh."""
    if not probe:
        return None
    text = (INCLUDE[0] / "wide.cuh").read_text()
    changes = {
        "steps": ("const int b = pass / F::kSub, row = group_row + 2 * g;\n    const float2 w",
                  "y[0] += c[0] + c[8] + c[16] + c[24];\n    return;\n    const int b = pass / F::kSub, row = group_row + 2 * g;\n    const float2 w"),
        "products": ("    products_fence();\n    const uint8_t* x",
                     "    for (int i = 0; i < 32; ++i) c[i] = __int_as_float(a[0][0][i & 3]);\n    return;\n    products_fence();\n    const uint8_t* x"),
    }  # fmt: skip
    old, new = changes[probe]
    assert old in text
    return {"wide.cuh": text.replace(old, new)}


# label -> (architecture, macros)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "wgmma 128x128, 4 stages": ("sm_90a", {"parts": 2, "stages": 4}),
    "wgmma 128x128, 3 stages": ("sm_90a", {"parts": 2, "stages": 3}),
    "wgmma 64x256, 3 stages": ("sm_90a", {"parts": 2, "stages": 3, "rg": 1, "tg": 2}),
    "wgmma 128x64, 4 stages": ("sm_90a", {"parts": 1, "stages": 4}),
    "wgmma 64x128, 3 stages, 2 a multiprocessor": ("sm_90a", {"parts": 2, "stages": 3, "rg": 1}),
    "mma.sync 128x128, 4 stages": ("sm_90", {"parts": 2, "stages": 4}),
    "probe: no steps": ("sm_90a", {"parts": 2, "stages": 4, "probe": "steps"}),
    "probe: no products": ("sm_90a", {"parts": 2, "stages": 4, "probe": "products"}),
    "probe: one term": ("sm_90a", {"parts": 2, "stages": 4, "terms": 1}),
}


def sources(name: str) -> list[tuple[str, str, dict[str, str] | None]]:
    found = [(wide_source(name, **m), arch, wide_headers(**m)) for arch, m in VARIANTS.values()]
    widen = source("widen.cu", TYPE=f"QuantType::{name}")
    return [*found, (widen, "sm_90", None), (products.gemm_source(name, True), "sm_90", None)]


class Wide:
    """The expanded planes of a case, and launches over them."""

    def __init__(self, case: products.Case) -> None:
        self.case, gpu = case, case.gpu
        self.n, self.k, self.padded = case.n, case.k, -(-case.k // 64) * 2
        self.rows, self.tokens = -(-case.n // 128) * 128, -(-len(case.q8[0]) // 256) * 256
        cells, columns = self.rows * self.padded, self.tokens * self.padded
        self.codes, self.w, self.s, self.m, self.mins = (
            harness.Buffer(b) for b in (cells * 32, *(cells * 8,) * 4)
        )
        self.x, self.d, self.sum = (harness.Buffer(b) for b in (columns * 64, columns * 4, columns * 4))
        self.live = harness.Buffer(4)
        module = gpu.load(harness.compile_cubin(source("widen.cu", TYPE=f"QuantType::{case.name}"), "sm_90"))
        self.expand = gpu.kernel(module, "expand_weights")
        self.widen = gpu.kernel(module, "widen_rows")

    def prepare_weights(self, i: int = 0) -> None:
        args = (self.case.at(i), self.codes, self.w, self.s, self.m, self.mins, self.n, 0, self.rows, self.k)
        shared = 4 * products.TABLE_WORDS.get(self.case.name, 0)
        self.case.gpu.launch(self.expand, (-(-self.rows * self.padded // THREADS),), THREADS, args, shared)

    def prepare_rows(self, count: int) -> int:
        tokens = -(-count // 256) * 256
        args = (self.live, self.case.q, self.case.d, self.case.s, self.x, self.d, self.sum, tokens, self.k)
        self.case.gpu.launch(self.widen, (-(-tokens * self.padded * 2 // THREADS),), THREADS, args)
        return tokens

    def kernel(self, variant: str) -> Any:
        arch, m = VARIANTS[variant]
        gpu = self.case.gpu
        module = gpu.load(harness.compile_cubin(wide_source(self.case.name, **m), arch, wide_headers(**m)))
        at, _ = harness.check(harness.driver.cuModuleGetGlobal(module, b"wide_linear_shared"))
        out = np.zeros(1, np.int32)
        harness.check(harness.driver.cuMemcpyDtoH(out.ctypes.data, at, 4))
        shared = int(out[0])
        kernel = gpu.kernel(module, "wide_linear", shared)
        rg, tg = m.get("rg", 2), m.get("tg", 1)

        def launch(count: int, tokens: int) -> None:
            grid = self.rows // (64 * rg) * (tokens // (64 * m["parts"] * tg))
            args = (self.live, self.codes, self.w, self.s, self.m, self.mins, self.x, self.d, self.sum, self.case.y, self.n,
                    0, self.rows, tokens, self.k)  # fmt: skip
            gpu.launch(kernel, (grid,), 128 * rg * tg, args, shared)

        return launch


def measure(name: str, rows: list[int], gpu: harness.Gpu, cpu: Cpu) -> list[dict[str, Any]]:
    case = products.Case(gpu, cpu, name, max(rows), rotate=1)
    wide = Wide(case)
    found: list[dict[str, Any]] = []
    gemm = dict(products.gemm_kernels(case, True))[128]
    for count in rows:
        wide.live.put(np.array([count], np.int32))
        reference = products.run_once(case, gemm, count)
        if count == min(rows):
            raw = np.ascontiguousarray(case.raw[:512])
            expected = cpu.product(name, raw, 512, case.k, case.rows(16))
            equal = products.same_bits(np.ascontiguousarray(reference[:16, :512]), expected)
            print(f"{name} baseline equal to the contract's text: {equal}", flush=True)
        wide.prepare_weights()
        tokens = wide.prepare_rows(count)
        gpu.sync()
        work = 2.0 * count * case.n * case.k / 1e6

        def say(label: str, body: Any, equal: Any = None) -> None:
            us = statistics.median(gpu.time(body, 7, 2))
            row = {
                "type": name,
                "rows": count,
                "n": case.n,
                "k": case.k,
                "variant": label,
                "us": us,
                "tops": work / us,
                "equal": equal,
            }
            found.append(row)
            print(
                f"{name:8} {count:6} {label:45} {us:9.1f} us {work / us:7.1f} TOPS {'' if equal is None else equal}",
                flush=True,
            )

        say("gemm.cuh, 128 tokens", lambda: gemm(0, count))
        say("expand weights", wide.prepare_weights)
        say("widen rows", lambda: wide.prepare_rows(count))
        for label in VARIANTS:
            if label == "probe: one term" and name != "Q6_K":
                continue
            try:
                launch = wide.kernel(label)
                case.y.fill(0xFF)
                launch(count, tokens)
                gpu.sync()
                equal = (
                    None
                    if label.startswith("probe")
                    else products.same_bits(case.y.get((count, case.n), np.float32), reference)
                )
                say(label, lambda: launch(count, tokens), equal)
            except RuntimeError as error:
                print(f"{name} {label}: {str(error)[:200]}", flush=True)
                if "ILLEGAL" in str(error) or "LAUNCH_FAILED" in str(error):
                    sys.exit(1)
    case.free()
    for b in (wide.codes, wide.w, wide.s, wide.m, wide.mins, wide.x, wide.d, wide.sum):
        b.free()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", default="IQ3_XXS,Q6_K,Q4_K,IQ2_S")
    parser.add_argument("--rows", default="512,2048,8192")
    parser.add_argument("--out")
    args = parser.parse_args()
    types, rows = args.types.split(","), [int(r) for r in args.rows.split(",")]
    with ProcessPoolExecutor(12) as pool:
        jobs = [
            pool.submit(harness.compile_cubin, text, arch, headers)
            for t in types
            for text, arch, headers in sources(t)
        ]
        for job in jobs:
            job.result()
    gpu, cpu = harness.Gpu(), Cpu()
    found: list[dict[str, Any]] = []
    for name in types:
        found += measure(name, rows, gpu, cpu)
        if args.out:
            Path(args.out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
