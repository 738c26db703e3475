"""Stage 14: a GPU smaller than the model. 4 layers have the CPU's logits hash at any residency and share, while experts
move, after faults and where another program squeezes RAM; the full-size model's hash and rates at 24 and 12 GiB, with
the link held to 22 GB/s, and once more after a restart that knows what was used."""

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gpu_rig import GpuRig, digest
from rig import Swapper

from gpu_check.common import SLOW, Report, close, hold_link, load_cpu, logits_digest, memory, on_gpu, say
from gpu_check.files import model_file
from gpu_check.rehearsal import EMULATED, open_gpu, sized
from strata import hw
from strata.bench import windows
from strata.bench.tier_report import Rates, measured_rates, tier_report
from strata.bench.windows import Windows, load_cycle
from strata.engine import Engine
from strata.errors import FaultError

ROWS = sized((1,) * 8 + (2, 3, 7, 13, 30), (1, 1, 3, 13))  # of steps: every bucket
EXPERTS = sized(512, 16)  # of a layer
ALL = 4 * EXPERTS
RESIDENCIES, SHARES = sized((0.05, 0.25, 0.5, 0.99), (0.05, 0.5)), sized(("0", "0.5", "1"), ("0", "1"))
CAPS = sized((24, 12), (0,))  # GiB
TOKENS = sized(16, 3)
ROUNDS = sized(2, 1)  # cold, warm
LEFT = sized(12, None)  # GiB that another program leaves; None: it takes 64 MiB
FAULTS = {"stall": 1, "die": 2}
LIMIT_NS = 200_000_000
if EMULATED:
    windows.WINDOW, windows.WINDOWS, windows.CHANGES = 40, 2, 2


def run(report: Report) -> None:
    full = model_file("planted.gguf")
    with tempfile.TemporaryDirectory() as learned, variable("XDG_CACHE_HOME", learned):
        for cap in CAPS:
            report[f"{cap} GiB"] = _windows(full, cap)
        report[f"{CAPS[-1]} GiB"]["restart"] = _restarted(full, CAPS[-1])
    report["one hash at all caps"] = len({report[f"{cap} GiB"]["hash"] for cap in CAPS}) == 1
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
    with rig(path, 0.25, "0.5") as r, squeezed():
        report["squeezed"] = moving(r, wanted)
    say(f"RAM squeezed: {report['squeezed']}")


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """The environment has it meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update({} if before is None else {name: before})


@contextmanager
def squeezed() -> Iterator[None]:
    """Another program takes and keeps touching the RAM that is left, but for a few GiB."""
    count = 64 << 20 if LEFT is None else max(0, hw.memory().available - (LEFT << 30))
    words = f"import numpy as n, time; a = n.ones({count // 8}); end = time.time() + 120\n"
    words += "print(1, flush=True)\nwhile time.time() < end: a += 1"
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            say(f"another program holds {count / 2**30:.1f} GiB")
            yield
        finally:
            other.kill()


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


def _loaded(path: Path, cap: int) -> Any:
    options = {"vram_limit_gib": float(cap)} if cap else {"expert_cache": "16"}
    return on_gpu(path, kv="int8", mtp="off", max_model_len=sized(8192, 512), **options)


def _windows(path: Path, cap: int) -> Report:
    """The hash of some tokens, then what `strata benchmark --windows` tells: cold, warm, and with a slower link."""
    begin, cycle = time.perf_counter(), load_cycle(path)
    with _loaded(path, cap) as loaded:
        found: Report = {"hash": logits_digest(loaded, cycle[:TOKENS].tolist()), **memory(loaded)}
        run = Windows(loaded, cycle)
        names = ("cold", "warm")
        rates, lines = measured_rates(loaded), []
        for name, results in zip(names, run.rounds(ROUNDS, say), strict=False):
            lines += tier_report(loaded, results, rates).lines(name)
        lines += tier_report(loaded, [run.run(run.staying)], rates).lines("one topic")
        found["full link"] = _told(cap, lines, rates)
        hold_link(loaded, SLOW)
        rates, lines = measured_rates(loaded), []
        for results in run.rounds(1, say):  # what the rounds before learned holds for it
            lines += tier_report(loaded, results, rates).lines("windows")
        found[f"link {SLOW:g} GB/s"] = _told(cap, lines, rates)
    say(f"{cap} GiB: hash {found['hash']}, {time.perf_counter() - begin:.0f} s")
    return found


def _restarted(path: Path, cap: int) -> list[str]:
    """The first round of a process that found the learned set of the one before."""
    with _loaded(path, cap) as loaded:
        run, rates = Windows(loaded, load_cycle(path)), measured_rates(loaded)
        lines = [line for r in run.rounds(1, say) for line in tier_report(loaded, r, rates).lines("restart")]
        return _told(cap, lines, rates)


def _told(cap: int, lines: list[str], rates: Rates) -> list[str]:
    lines.append(
        f"rates {rates.link / 1e9:.1f} GB/s link, {rates.cpu / 1e9:.1f} CPU, {rates.ram / 1e9:.1f} RAM"
    )
    say(f"{cap} GiB:\n  " + "\n  ".join(lines))
    return lines
