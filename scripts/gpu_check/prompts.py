"""Stage 11: products of prompt chunks: bits against the step form's kernels, TOPS by format, shape and tile."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path += [str(Path(__file__).resolve().parents[2] / "tests" / p) for p in ("backends", "ops", ".")]

from harness import Case, output, same_bits, weight

from gpu_check.common import Report, say
from gpu_check.rehearsal import EMULATED, open_gpu, sized
from gpu_check.settings import setting
from strata.backends.cuda import CudaBackend, lower_wide, lower_wide_experts, lower_wide_float
from strata.backends.cuda.driver import Driver, Kernel, Source
from strata.backends.cuda.lower import type_macro
from strata.backends.cuda.lower_wide import Tile, WideTraits
from strata.ops.buffers import Buffer, Weight
from strata.ops.combine import Combine
from strata.ops.expert_groups import group_by_expert
from strata.ops.experts import ExpertWeights, routed_experts
from strata.ops.linear import linear
from strata.ops.step import Form
from strata.quants import FORMATS

NEVER = 1 << 30
TYPES = sized(("Q6_K", "Q8_0", "Q4_K", "IQ3_XXS", "IQ2_S", "NVFP4", "Q2_K"), ("Q6_K",))
HIDDEN, INNER = sized((2560, 640), (256, 256))
Make = Callable[[], tuple[Case, Buffer]]
# Of kernels/wide.cuh: images and stages, most tiles that a thread block has one after another.
TILES = {
    "4 of 2 blocks": (Tile(1, 4), 5),
    "3 of 4 blocks": (Tile(2, 3), 5),
    "3 of 2 blocks": (Tile(1, 3), 5),
    "a tile a thread block": (Tile(1, 4), 1),
}


def dense_case(name: str, rows: int, n: int, k: int, form: Form = "step") -> Make:
    """A product of rows [rows, k] with [n, k]."""
    w = weight(name, n, k, 3)
    x = np.random.default_rng(5).standard_normal((rows, k)).astype(np.float32)

    def make() -> tuple[Case, Buffer]:
        case = Case(rows)
        case.builder.form = form
        out = output(rows, n, case.steps)
        linear(case.builder, case.input(x), w, out=out)
        return case, out

    return make


def experts_case(
    gate: str, down: str, experts: int, rows: int, top: int, hidden: int = HIDDEN, inner: int = INNER
) -> Make:
    """Routed experts of random choice."""

    def stack(name: str, n: int, k: int, seed: int) -> Weight:
        w = weight(name, experts * n, k, seed)
        return Weight(f"{name}.{seed}", w.format, (experts, n, k), w.data.reshape(experts, -1))

    w = ExpertWeights(
        stack(gate, inner, hidden, 1), stack(gate, inner, hidden, 2), stack(down, hidden, inner, 3)
    )
    g = np.random.default_rng(7)
    x = g.standard_normal((rows, hidden)).astype(np.float32)
    ids = np.argsort(g.random((rows, experts)), axis=1)[:, :top].astype(np.int32)
    mix = g.uniform(0.1, 1, ids.shape).astype(np.float32)

    def make() -> tuple[Case, Buffer]:
        case = Case(rows)
        chosen = Buffer("ids", ids.shape, "i32", "input", live=case.steps.num_rows)
        case.set(chosen, ids)
        groups = group_by_expert(case.builder, chosen, experts)
        y = routed_experts(case.builder, case.input(x), groups, w)
        out = output(rows, hidden, case.steps)
        case.builder.emit(Combine(y, case.input(mix, "mix"), out))
        return case, out

    return make


def timed(driver: Driver, make: Make, repeats: int = sized(5, 1)) -> tuple[np.ndarray, dict[str, float]]:
    """The result, and microseconds by kernel."""
    case, out = make()
    backend = CudaBackend(driver)
    got = case.run(backend, out)
    replay = backend.lower(case.finish() if case._program is None else case._program)
    by: dict[str, float] = defaultdict(float)
    for _, kernel, us in replay.timeline(repeats):
        by[str(kernel).split(" ", 1)[0]] += us
    return got, dict(by)


def baseline(driver: Driver, make: Make) -> tuple[np.ndarray, dict[str, float]]:
    with setting(lower_wide, "WIDE_ROWS", NEVER):
        return timed(driver, make, 1)


def told(label: str, by: dict[str, float], work: dict[str, float], equal: bool | float) -> Report:
    """One line: TOPS of the products' kernels, microseconds of the others; `equal` or NRMSE."""
    rates = {k: round(work[k] / us / 1e6, 1) for k, us in by.items() if k in work}
    rest = {k: round(us, 1) for k, us in by.items() if k not in ("quantize_rows", "combine")}
    say(
        f"{label:48} {equal if isinstance(equal, float) else 'equal' if equal else 'DIFFERS'} {rates} us {rest}"
    )
    return {"equal": equal, "tops": rates, "us": rest}


@contextmanager
def tiles(tile: Tile, most_in_turn: int) -> Iterator[None]:
    """Products of prompts by such tiles."""
    with (
        setting(lower_wide, "TILES", (tile,)),
        setting(lower_wide, "DECODING_TILES", (replace(tile, images=1),)),
        setting(lower_wide, "MOST_IN_TURN", most_in_turn),
    ):
        yield


def kernels() -> list[Kernel]:
    """What is compiled side by side before the first case."""
    found, first = [], next(iter(TILES.values()))[0]
    all_tiles = list(dict.fromkeys(tile for tile, _ in TILES.values()))
    for name in TYPES:
        fmt = FORMATS[name]
        found.append(Kernel(Source("widen.cu", (type_macro(fmt),)), "expand_weights"))
        for tile in all_tiles if name in ("Q6_K", "Q8_0") else (first,):
            macros = (*WideTraits.of(fmt).macros(), *tile.macros())
            found.append(Kernel(Source("wide_linear.cu", macros), "wide_linear"))
    for name in ("IQ3_XXS", "Q2_0", "IQ2_S", "IQ4_NL", "Q4_K", "Q5_1"):
        fmt = FORMATS[name]
        plane = ("STRATA_PLANE", lower_wide_experts._plane(fmt)[0])
        for tile in all_tiles if name in ("IQ3_XXS", "Q2_0") else (first,):
            macros = (type_macro(fmt), plane, ("STRATA_STAGES", tile.stages))
            found.append(Kernel(Source("wide_experts.cu", macros), "wide_gate_up"))
    return sized(found, [])


def run(report: Report, only: Sequence[str] = ("dense", "float", "experts")) -> None:
    """Every comparison; an error of one does not end the others."""
    driver = open_gpu(0).driver
    begin = time.perf_counter()
    driver.prepare(kernels())
    say(f"kernels in {time.perf_counter() - begin:.0f} s")
    parts = {"dense": dense, "float": floating, "experts": routed}
    for label, part in (found for name in only for found in parts[name](driver)):
        report[label] = part


def dense(driver: Driver, types: Sequence[str] = TYPES) -> Iterator[tuple[str, Any]]:
    shapes = [sized((8192, 10240, 2560), (256, 128, 256))]
    for name in types:
        more = (
            [(512, 10240, 2560), (8192, 2560, 6144), (8192, 2560, 640)]
            if name == "Q6_K" and not EMULATED
            else []
        )
        for rows, n, k in (*shapes, *more):
            make = dense_case(name, rows, n, k)
            want, by = baseline(driver, make)
            work = {"wide_linear": 2.0 * rows * n * k, "linear_q": 2.0 * rows * n * k}
            title = f"{name} {rows} x {n} x {k}"
            yield f"{title} step", told(f"{title} step form", by, work, True)
            for label, choice in TILES.items():
                if label != next(iter(TILES)) and (name not in ("Q6_K", "Q8_0") or (rows, n, k) != shapes[0]):
                    continue
                with tiles(*choice):
                    got, by = timed(driver, make)
                yield f"{title} {label}", told(f"{title} {label}", by, work, same_bits(got, want))


def floating(driver: Driver) -> Iterator[tuple[str, Any]]:
    """Float products of the chunk form beside the step form's."""
    shapes = [("BF16", 320, 10240), ("BF16", 10240, 320), ("F32", 512, 2560), ("F16", 6912, 2560)]
    rows = sized(8192, 64)
    for name, n, k in sized(shapes, [("BF16", 64, 256)]):
        title = f"{name} {rows} x {n} x {k}"
        want, by = timed(driver, dense_case(name, rows, n, k), 1)
        work = {"wide_float": 2.0 * rows * n * k, "linear_f": 2.0 * rows * n * k}
        yield f"{title} step", told(f"{title} step form", by, work, True)
        for outputs in lower_wide_float._OUTPUTS:
            with setting(lower_wide_float, "_OUTPUTS", (outputs,)):
                got, by = timed(driver, dense_case(name, rows, n, k, "chunk"))
            error = float(
                np.sqrt(np.mean((got.astype(np.float64) - want) ** 2) / np.mean(want.astype(np.float64) ** 2))
            )
            label = f"{title}, {2 * outputs} outputs"
            yield label, told(label, by, work, error)


def where_experts_differ(driver: Driver) -> None:
    """Which rows and columns of routed experts differ, by the row's place among its expert's."""
    for gate, down in (("IQ3_XXS", "Q2_0"), ("Q8_0", "Q8_0")):
        make = experts_case(gate, down, 4, 1024, 1, 512, 256)
        want, _ = baseline(driver, make)
        for label, choice in TILES.items():
            with tiles(*choice):
                got, _ = timed(driver, make, 1)
            differs = got.view(np.int32) != want.view(np.int32)
            rows = np.flatnonzero(differs.any(axis=1))
            columns = np.flatnonzero(differs.any(axis=0))
            say(
                f"{gate} {down} {label}: {len(rows)} rows {rows[:8]} and {len(columns)} columns {columns[:8]} differ"
            )


def routed(driver: Driver) -> Iterator[tuple[str, Any]]:
    cases = [("IQ3_XXS", "Q2_0", 512, r, 10) for r in (8192, 2048, 512)]
    cases += [("IQ2_S", "IQ4_NL", 64, 1024, 10), ("Q4_K", "Q5_1", 64, 1024, 10)]
    cases = sized(cases, [("IQ3_XXS", "Q2_0", 4, 64, 2)])
    for gate, down, experts, rows, top in cases:
        make = experts_case(gate, down, experts, rows, top)
        want, by = baseline(driver, make)
        work = rows * top * HIDDEN * INNER * 2.0
        kinds = {"wide_gate_up": 2 * work, "expert_gate_up": 2 * work, "wide_down": work, "expert_down": work}
        title = f"{gate} {down} {experts} experts {rows} rows"
        yield f"{title} step", told(f"{title} step form", by, kinds, True)
        for label, choice in TILES.items():
            if label != next(iter(TILES)) and gate != "IQ3_XXS":
                continue
            with tiles(*choice):
                got, by = timed(driver, make)
            yield f"{title} {label}", told(f"{title} {label}", by, kinds, same_bits(got, want))


if __name__ == "__main__":
    found: Report = {}
    if "where" in sys.argv[1:]:
        where_experts_differ(open_gpu(0).driver)
    else:
        run(found, sys.argv[1:] or ("dense", "float", "experts"))
