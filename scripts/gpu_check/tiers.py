"""Stage 14: a GPU smaller than the model. 4 layers have the CPU's logits hash at any residency and share, while experts
move and after faults; the full-size model's rates at 24 and 12 GiB, and with the link held to 22 GB/s."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gpu_rig import GpuRig, digest
from rig import Swapper

from gpu_check.common import Report, close, load_cpu, on_gpu, say
from gpu_check.files import model_file
from gpu_check.rehearsal import EMULATED, open_gpu, sized
from strata.bench import windows
from strata.bench.tier_report import measured_rates, tier_report
from strata.bench.windows import Windows, load_cycle
from strata.engine import Engine
from strata.errors import FaultError

ROWS = sized((1,) * 8 + (2, 3, 7, 13, 30), (1, 1, 3, 13))  # of steps: every bucket
EXPERTS = sized(512, 16)  # of a layer
ALL = 4 * EXPERTS
RESIDENCIES, SHARES = sized((0.05, 0.25, 0.5, 0.99), (0.05, 0.5)), sized(("0", "0.5", "1"), ("0", "1"))
CAPS = sized(((24, 0), (12, 0), (24, 22), (12, 22)), ((0, 0),))  # GiB, GB/s of the link
FAULTS = {"stall": 1, "die": 2}
LIMIT_NS = 200_000_000
if EMULATED:
    windows.WINDOW, windows.WINDOWS, windows.CHANGES = 40, 2, 2


def run(report: Report) -> None:
    full = model_file("planted.gguf")
    for cap, link in CAPS:
        report[f"{cap} GiB, link {link or 'full'}"] = _windows(full, cap, link)
    path = model_file("planted-4.gguf")
    cycle = np.load(f"{path}.cycle.npy").tolist()
    wanted = digest(Engine(load_cpu(path, max_model_len=192)), cycle, ROWS)
    report["equal"] = {}
    for residency in RESIDENCIES:
        for share in SHARES:
            with rig(path, residency, share) as r:
                report["equal"][f"{residency} {share}"] = moving(r, wanted)
            say(f"residency {residency}, CPU share {share}: {report['equal'][f'{residency} {share}']}")
    report["faults"] = {name: _fault(path, wanted, number) for name, number in FAULTS.items()}
    say(f"faults: {report['faults']}")


@contextmanager
def rig(path: Path, residency: float, share: str, **options: Any) -> Iterator[GpuRig]:
    """The model with that part of its experts in slots."""
    gc.collect()
    made = GpuRig(path, open_gpu(0), round(residency * ALL), share, ram_limit_gib=100.0, **options)
    try:
        yield made
    finally:
        close(made.engine)
        gc.collect()


def moving(r: GpuRig, wanted: str, rows: tuple[int, ...] = ROWS) -> dict[str, Any]:
    """Whether the hash is the wanted one while nothing moves, while experts are swapped at random, with guesses held
    back, and with a slow link."""
    found = {"still": r.digest(rows) == wanted}
    with Swapper(r.device, r.layers, experts=EXPERTS) as swapper:
        found["swapped"] = r.digest(rows) == wanted
    r.device.set_ahead(0)
    found["without guesses"] = r.digest(rows) == wanted
    r.device.set_link(0.5)
    found["slow link"] = r.digest(rows) == wanted
    r.device.set_link(0.0)
    return found | {"swaps": swapper.done}


def _fault(path: Path, wanted: str, number: int) -> dict[str, Any]:
    """A worker that stalls or dies: the step is void, and later ones are right."""
    with rig(path, 0.1, "0.5") as r:
        r.device.set_limit(LIMIT_NS)
        r.device.inject_worker(number, sized(50, 5))
        begin, told = time.perf_counter(), "nothing happened"
        try:
            r.digest(ROWS)
        except FaultError as error:
            told = f"{error} after {time.perf_counter() - begin:.2f} s"
        r.engine._runner.pages.free(0)
        r.device.inject_worker(0, 0)
        return {"told": told, "then equal": r.digest(ROWS) == wanted}


def _windows(path: Path, cap: int, link: int) -> list[str]:
    """What `strata benchmark --windows` tells, after one round to warm up."""
    begin = time.perf_counter()
    options = {"vram_limit_gib": float(cap), "link_limit_gbps": float(link)}
    options |= {} if cap else {"expert_cache": "16"}
    with on_gpu(path, kv="int8", max_model_len=sized(8192, 512), **options) as loaded:
        rates, run = measured_rates(loaded), Windows(loaded, load_cycle(path))
        lines = []
        for name, results in zip(
            ("cold", "warm-up 2", "windows"), run.rounds(sized(3, 1), say), strict=False
        ):
            lines += tier_report(loaded, results, rates).lines(name)
        lines += tier_report(loaded, [run.run(run.staying)], rates).lines("one topic")
    lines.append(
        f"rates {rates.link / 1e9:.1f} GB/s link, {rates.cpu / 1e9:.1f} CPU, {rates.ram / 1e9:.1f} RAM"
    )
    say(f"{cap} GiB, link {link or 'full'}, {time.perf_counter() - begin:.0f} s:\n  " + "\n  ".join(lines))
    return lines
