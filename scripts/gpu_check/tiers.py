"""Stage 14: a GPU smaller than the model. 8 layers have the CPU's logits hash at any residency and share, while experts
move and after faults; the full-size model's rates at 24 and 12 GiB, and with the link held to 22 GB/s."""

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
from gpu_rig import GpuRig, digest
from rig import Swapper

from gpu_check.common import Report, say, synth
from strata.backends.cuda import open_gpu
from strata.config import EngineOptions
from strata.engine import Engine
from strata.errors import FaultError

ROWS = (1,) * 8 + (2, 3, 7, 13, 30)  # of steps: every bucket
EXPERTS = 8 * 512
CAPS = ((24, 0), (12, 0), (24, 22), (12, 22))  # GiB, GB/s of the link
FAULTS = {"stall": 1, "die": 2}


def run(report: Report) -> None:
    path = synth("planted-8.gguf", "planted", "--layers", "8", "--gain", "8", "--no-draft")
    options = EngineOptions(device="cpu", prefill=0, max_model_len=192, ram_limit_gib=120)
    wanted = digest(Engine.load(path, options), np.load(f"{path}.cycle.npy").tolist(), ROWS)
    report["equal"] = {}
    for residency in (0.05, 0.25, 0.5, 0.99):
        for share in ("0", "0.5", "1"):
            r = GpuRig(path, open_gpu(0), round(residency * EXPERTS), share, ram_limit_gib=100.0)
            report["equal"][f"{residency} {share}"] = _moving(r, wanted)
            say(f"residency {residency}, CPU share {share}: {report['equal'][f'{residency} {share}']}")
    report["faults"] = _faults(path, wanted)
    say(f"faults: {report['faults']}")
    full = synth("planted.gguf", "planted")
    for cap, link in CAPS:
        report[f"{cap} GiB, link {link or 'full'}"] = _windows(str(full), cap, link)


def _moving(r: GpuRig, wanted: str) -> dict[str, Any]:
    """The hash while nothing moves, while experts are swapped at random, and with guesses held back."""
    found = {"still": r.digest(ROWS) == wanted}
    with Swapper(r.device, r.layers, experts=512) as swapper:
        found["swapped"] = r.digest(ROWS) == wanted
    r.device.set_ahead(0)
    found["without guesses"] = r.digest(ROWS) == wanted
    r.device.set_link(0.5)
    found["slow link"] = r.digest(ROWS[:4]) == digest_of(r, ROWS[:4])
    return found | {"swaps": swapper.done}


def digest_of(r: GpuRig, rows: tuple[int, ...]) -> str:
    """The same steps at full link."""
    r.device.set_link(0.0)
    return r.digest(rows)


def _faults(path: Any, wanted: str) -> dict[str, Any]:
    """Workers that stall or die: the step is void, and later ones are right."""
    found: dict[str, Any] = {}
    for name, fault in FAULTS.items():
        r = GpuRig(path, open_gpu(0), 200, "0.5", ram_limit_gib=100.0)
        r.device.set_limit(200_000_000)
        r.device.inject_worker(fault, 50)
        begin = time.perf_counter()
        try:
            r.digest(ROWS)
            found[name] = "nothing happened"
        except FaultError as error:
            found[name] = f"{error} after {time.perf_counter() - begin:.2f} s"
        r.engine._runner.pages.free(0)
        r.device.inject_worker(0, 0)
        found[f"{name}, then equal"] = r.digest(ROWS) == wanted
    return found


def _windows(path: str, cap: int, link: int) -> list[str]:
    """Lines of `strata benchmark --windows` in a process of its own."""
    command = [
        sys.executable,
        "-c",
        "from strata.cli import main; main()",
        "benchmark",
        path,
        "--windows",
        "3",
    ]
    command += ["--vram-limit-gib", str(cap), "--kv", "int8", "--device", "cuda", "--ram-limit-gib", "120"]
    command += ["--link-limit-gbps", str(link)] if link else []
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
    say(f"{cap} GiB, link {link or 'full'}, {time.perf_counter() - begin:.0f} s:\n  " + "\n  ".join(lines))
    return lines
