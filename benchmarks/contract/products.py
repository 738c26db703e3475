"""Quantised products: bit equality of every form, and what the contract's order costs on this GPU and CPU.

Usage: python -m benchmarks.contract.products [--quick] [--out FILE.json]
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from benchmarks.contract import harness
from benchmarks.contract.cpu import Cpu
from benchmarks.contract.pack import pack, random_rows

# type -> (n, k) as decode meets it: gate and up of 10 experts, down of 10 experts, a dense product
SHAPES = {"IQ3_XXS": (12800, 2560), "Q2_0": (25600, 640), "Q6_K": (10240, 2560), "Q4_K": (10240, 2560),
          "IQ2_S": (10240, 2560), "NVFP4": (10240, 2560)}  # fmt: skip
GEMV_ROWS = (1, 2, 4, 8)
TABLE_WORDS = {"IQ3_XXS": 256, "IQ2_S": 2048}
TILES = {
    8: (2, 1, 1),
    16: (2, 1, 2),
    32: (4, 1, 4),
    64: (4, 2, 4),
    128: (4, 4, 4),
}  # tokens -> warps and tiles
ROTATE = 500_000_000  # bytes of weights to rotate over, many times the L2
THREADS = 256
RULE = (16, 4)  # kMaxSegments, kSegmentBlocks
READ_SOURCE = (
    '#include "ceilings.cuh"\n'
    'extern "C" __global__ void run(const uint4* p, size_t n, uint32_t* sink) { strata::read_all(p, n, sink); }\n'
)


@dataclass
class Figure:
    form: str
    type: str
    n: int
    k: int
    rows: int
    variant: str
    us: float
    spread: float  # (p90 - p10) / median
    gb_s: float
    tops: float


def segments(blocks: int, most: int = 16, least: int = 4) -> int:
    s = 1
    while s < most and blocks >= 2 * s * least:
        s *= 2
    return s


def contract_text(most: int, least: int) -> dict[str, str]:
    """contract.h with another rule for the segments."""
    text = (harness.ROOT / "native/include/strata/contract.h").read_text()
    changed = text.replace("kMaxSegments = 16;", f"kMaxSegments = {most};").replace(
        "kSegmentBlocks = 4;", f"kSegmentBlocks = {least};"
    )
    return {"strata/contract.h": changed}


def gemv_source(name: str, k: int, copies: int, free: bool, threads: int = THREADS) -> str:
    call = "gemv_free" if free else "gemv"
    body = f'#include "{call}.cuh"\nusing namespace strata;\n'
    for m in GEMV_ROWS:
        body += f"""extern "C" __global__ void __launch_bounds__({threads}) run{m}(
    const uint8_t* w, int n, const int8_t* q, const float* d, const int16_t* s, int rows, float* y) {{
  {call}<QuantType::{name}, {k}, {m}, {copies}>(w, n, q, d, s, rows, y);
}}
"""
    return body


def gemm_source(name: str, segmented: bool, k: int = 2560) -> str:
    body = '#include "gemm.cuh"\nusing namespace strata;\n'
    for tokens, (rw, tw, nt) in TILES.items():
        fewest = {2: 6, 4: 3, 8: 2, 16: 1}[rw * tw]  # thread blocks a multiprocessor must hold
        body += f"""using G{tokens} = Gemm<QuantType::{name}, {k // 32}, {rw}, {tw}, {nt}, {str(segmented).lower()}>;
extern "C" __global__ void __launch_bounds__({32 * rw * tw}, {fewest}) run{tokens}(
    const uint8_t* w, int n, const int8_t* q, const float* d, const int16_t* s, int tokens, float* y) {{
  const int row = static_cast<int>(blockIdx.x) * G{tokens}::kRows;
  const int token = static_cast<int>(blockIdx.y) * G{tokens}::kTokens;
  G{tokens}::run({{w, q, d, s, y, n, tokens, row, token}});
}}
extern "C" __device__ int shared{tokens} = G{tokens}::kSharedBytes;
"""
    return body


class Case:
    """One weight type at its decode shape, on the device, with activations of up to `most` rows."""

    def __init__(
        self, gpu: harness.Gpu, cpu: Cpu, name: str, most: int, n: int = 0, rotate: int = ROTATE
    ) -> None:
        self.gpu, self.name = gpu, name
        self.n, self.k = n or SHAPES[name][0], SHAPES[name][1]
        self.raw = random_rows(name, self.n, self.k, 7)
        self.packed = pack(name, self.raw)
        self.copies = max(2, rotate // self.packed.nbytes)
        self.stride = -(-self.packed.nbytes // 256) * 256
        self.w = harness.Buffer(self.stride * self.copies)
        for i in range(self.copies):
            self.w.put(self.packed, i * self.stride)
        x = np.random.default_rng(11).standard_normal((most, self.k)).astype(np.float32)
        x[-1] *= 30
        self.q8 = cpu.quantize(x)
        self.q, self.d, self.s = (harness.Buffer(a.nbytes).put(a) for a in self.q8)
        self.y = harness.Buffer(most * self.n * 4)

    def at(self, i: int) -> np.uint64:
        return np.uint64(self.w.pointer + (i % self.copies) * self.stride)

    def rows(self, m: int) -> tuple[np.ndarray, ...]:
        return tuple(a[:m] for a in self.q8)

    def figure(self, form: str, rows: int, variant: str, times: list[float], launches: int) -> Figure:
        us = sorted(t / launches for t in times)
        median = statistics.median(us)
        spread = (us[int(0.9 * (len(us) - 1))] - us[int(0.1 * (len(us) - 1))]) / median
        rate, work = self.packed.nbytes / median / 1e3, 2.0 * rows * self.n * self.k / median / 1e6
        return Figure(form, self.name, self.n, self.k, rows, variant, median, spread, rate, work)

    def free(self) -> None:
        for b in (self.w, self.q, self.d, self.s, self.y):
            b.free()


def gemv_kernels(
    case: Case, copies: int, free: bool, rule: tuple[int, int] = RULE, threads: int = THREADS
) -> Iterator[tuple[int, object]]:
    """(rows, launcher(i, rows)) for every compiled row count."""
    headers = contract_text(*rule) if rule != RULE else None
    module = case.gpu.load(
        harness.compile_cubin(
            gemv_source(case.name, case.k, copies, free, threads), case.gpu.arch, headers=headers
        )
    )
    segs = segments(case.k // 32, *rule)
    per_warp = 32 // segs
    for m in GEMV_ROWS:
        row_bytes = case.k + (0 if free else 16 * segs) + case.k // 8 + case.k // 8
        shared = 4 * TABLE_WORDS.get(case.name, 0) * copies + threads * m * 4 + m * row_bytes + 64
        kernel = case.gpu.kernel(module, f"run{m}", shared)
        grid = -(-case.n // (per_warp * threads // 32))

        def launch(i: int, rows: int, kernel=kernel, grid=grid, shared=shared) -> None:
            args = (case.at(i), case.n, case.q, case.d, case.s, rows, case.y)
            case.gpu.launch(kernel, (grid,), threads, args, shared, dependent=True)

        yield m, launch


def gemm_kernels(
    case: Case, segmented: bool, headers: dict[str, str] | None = None
) -> Iterator[tuple[int, object]]:
    """(tile tokens, launcher(i, rows))."""
    module = case.gpu.load(
        harness.compile_cubin(gemm_source(case.name, segmented, case.k), case.gpu.arch, headers=headers)
    )
    for tokens, (rw, tw, _) in TILES.items():
        pointer, _size = harness.check(harness.driver.cuModuleGetGlobal(module, f"shared{tokens}".encode()))
        shared = np.empty(1, np.int32)
        harness.check(harness.driver.cuMemcpyDtoH(shared.ctypes.data, int(pointer), 4))
        kernel = case.gpu.kernel(module, f"run{tokens}", int(shared[0]))

        def launch(
            i: int,
            rows: int,
            kernel=kernel,
            tokens=tokens,
            tile=32 * rw,
            threads=32 * rw * tw,
            shared=int(shared[0]),
        ) -> None:
            args = (case.at(i), case.n, case.q, case.d, case.s, rows, case.y)
            case.gpu.launch(
                kernel, (-(-case.n // tile), -(-rows // tokens)), threads, args, shared, dependent=True
            )

        yield tokens, launch


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return (
        a.shape == b.shape
        and bool((a.view(np.int32) == b.view(np.int32)).all())
        and bool(np.isfinite(a).all())
    )


def run_once(case: Case, launch: object, rows: int) -> np.ndarray:
    case.y.fill(0xFF)  # poison
    launch(0, rows)
    case.gpu.sync()
    return case.y.get((rows, case.n), np.float32)


def timed(case: Case, launch: object, rows: int, launches: int, repeats: int = 9) -> list[float]:
    def body() -> None:
        for i in range(launches):
            launch(i, rows)

    graph = case.gpu.capture(body)
    return case.gpu.time(lambda: case.gpu.replay(graph), repeats)


def check_case(case: Case, cpu: Cpu) -> dict[str, bool]:
    """Bit equality of the portable text, AVX-512, dp4a and tensor-core forms, over row counts."""
    most = 64
    expected = cpu.product("packed", case.name, case.packed, case.n, case.rows(most))
    rows = min(case.n, 512)
    reference = cpu.product("reference", case.name, np.ascontiguousarray(case.raw[:rows]), rows, case.rows(8))
    result = {"avx512 = portable": same_bits(np.ascontiguousarray(expected[:8, :rows]), reference)}
    gemv = dict(gemv_kernels(case, 1, False))
    for m in range(1, 9):
        launch = gemv[next(t for t in GEMV_ROWS if t >= m)]
        result[f"dp4a {m}"] = same_bits(run_once(case, launch, m), expected[:m])
    gemm = dict(gemm_kernels(case, True))
    for m in (8, 9, 16, 31, 64):
        result[f"mma {m}"] = all(same_bits(run_once(case, gemm[t], m), expected[:m]) for t in TILES)
    last = run_once(case, gemm[128], case.q8[0].shape[0])
    for m in (100, 512, 8192):
        if m <= len(last):
            result[f"mma {m}"] = same_bits(
                run_once(case, gemm[64 if m < 512 else 128], m), last[:m]
            ) and same_bits(np.ascontiguousarray(last[:64]), expected)
    tail = cpu.product("packed", case.name, case.packed, case.n, tuple(a[-8:] for a in case.q8))
    result["mma last rows"] = same_bits(np.ascontiguousarray(last[-8:]), tail)
    return result


def gemv_variants(name: str, quick: bool) -> list[tuple[str, int, bool, tuple[int, int], int]]:
    """(label, copies of the grid table, free order, segment rule, threads)."""
    variants = [("contract", 1, False, RULE, THREADS), ("free", 1, True, RULE, THREADS)]
    if name == "IQ3_XXS":
        variants += [("contract, 4 tables", 4, False, RULE, THREADS)]
    if name in ("IQ3_XXS", "Q6_K", "Q2_0") and not quick:
        variants += [(f"contract, {t} threads", 1, False, RULE, t) for t in (128, 512)]
        variants += [(f"free, {t} threads", 1, True, RULE, t) for t in (128, 512)]
        variants += [(f"contract, S <= {s}", 1, False, (s, 2), THREADS) for s in (4, 8, 32)]
    return variants


def gemm_variants(name: str) -> list[tuple[str, bool, dict[str, str] | None]]:
    """(label, segmented, replaced headers)."""
    variants: list[tuple[str, bool, dict[str, str] | None]] = [
        ("contract", True, None),
        ("free", False, None),
    ]
    if name != "IQ3_XXS":
        return variants
    text = (harness.ROOT / "src/strata/backends/cuda/kernels/gemm.cuh").read_text()

    def changed(old: str, new: str) -> dict[str, str]:
        assert old in text
        return {"gemm.cuh": text.replace(old, new)}

    step = "out = chain(magic_float(c[e]), w0[h] * d_a, out);\n          }"
    scaled = changed(step, "out = chain(magic_float(c[e]) * w0[h], w0[h] * d_a, out);\n          }")
    converted = changed(
        "return __int_as_float(sum) - 12582912.0f;", "return static_cast<float>(sum - kMagic);"
    )
    return [
        *variants,
        ("sub-scale in the sum", True, scaled),
        ("int conversion", True, converted),
        ("S <= 4", True, contract_text(4, 2)),
    ]


def time_case(case: Case, quick: bool) -> Iterator[Figure]:
    launches = min(case.copies, 40)
    for variant, copies, free, rule, threads in gemv_variants(case.name, quick):
        for m, launch in gemv_kernels(case, copies, free, rule, threads):
            yield case.figure("dp4a", m, variant, timed(case, launch, m, launches), launches)
    sizes = {8: [8], 16: [16], 32: [32, 512], 64: [64, 512, 2048], 128: [128, 512, 2048, 8192]}
    for variant, segmented, headers in gemm_variants(case.name):
        for tokens, launch in gemm_kernels(case, segmented, headers):
            for rows in sizes[tokens]:
                if rows <= len(case.q8[0]):
                    few = max(1, min(launches, 4096 // rows)) if rows > 64 else launches
                    yield case.figure(
                        "mma", rows, f"{variant}, {tokens}", timed(case, launch, rows, few, 5), few
                    )


def cpu_figures(case: Case, cpu: Cpu, threads: tuple[int, ...]) -> Iterator[Figure]:
    copies = max(2, 300_000_000 // case.packed.nbytes)
    w = np.concatenate([case.packed] * copies)
    for t in threads:
        for free in (False, True):
            times = [
                1e6 * cpu.sweep(case.name, free, w, copies, case.n, case.k, case.rows(1), t) for _ in range(3)
            ]
            yield case.figure("avx512", 1, f"{'free' if free else 'contract'}, {t} threads", times, copies)
        times = [1e6 * cpu.read(w, t) for _ in range(3)]
        yield case.figure("avx512", 0, f"read, {t} threads", times, copies)


def read_ceiling(gpu: harness.Gpu) -> float:
    """GB/s of a kernel that only reads 2 GB."""
    kernel = gpu.kernel(gpu.load(harness.compile_cubin(READ_SOURCE, gpu.arch)), "run")
    size = 2_000_000_000
    data, sink = harness.Buffer(size), harness.Buffer(16)
    data.fill(1)
    best = 0.0
    for blocks in (4, 8, 16):
        times = gpu.time(
            lambda b=blocks: gpu.launch(kernel, (gpu.sms * b,), 256, (data, np.uint64(size // 16), sink)), 10
        )
        best = max(best, size / statistics.median(times) / 1e3)
    data.free()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--types", default=",".join(SHAPES))
    parser.add_argument("--threads", default="1,8,16")
    args = parser.parse_args()
    gpu, cpu = harness.Gpu(), Cpu()
    ceiling = read_ceiling(gpu)
    print(f"{gpu.arch}, {gpu.sms} SMs, L2 {gpu.l2 >> 20} MB, read ceiling {ceiling:.0f} GB/s", flush=True)
    report = {"read_gb_s": ceiling, "equal": {}, "figures": []}
    for name in args.types.split(","):
        case = Case(gpu, cpu, name, 512 if args.quick else 8192)
        report["equal"][name] = check_case(case, cpu)
        bad = [k for k, ok in report["equal"][name].items() if not ok]
        print(f"{name}: {'all forms equal' if not bad else f'NOT equal: {bad}'}", flush=True)
        figures = list(time_case(case, args.quick))
        figures += list(cpu_figures(case, cpu, tuple(int(t) for t in args.threads.split(","))))
        for f in figures:
            speed = f"{f.us:9.2f} us +-{100 * f.spread:3.0f}% {f.gb_s:7.0f} GB/s {f.tops:7.2f} TOPS"
            print(f"  {f.form:6} {f.rows:5} {f.variant:28} {speed}", flush=True)
        report["figures"] += [asdict(f) for f in figures]
        case.free()
        if args.out:
            Path(args.out).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
