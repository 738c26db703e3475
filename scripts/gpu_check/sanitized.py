"""Stage 12: compute-sanitizer over steps of two planted layers, each bucket, an empty and a full context, and over a
prompt in chunks. At full width; racecheck, which takes longest by far, at half of it.

The same runs without a tool first: that compiles the kernels and gives the digests that every other run must have,
those of steps the CPU's too. A kernel with a planted race and one that writes too far show that the tools see this
process's graphs.
"""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpu_check.common import Report, digest, say
from gpu_check.files import model_file
from gpu_check.rehearsal import EMULATED, open_gpu, sized
from strata.backends.cuda import CudaBackend
from strata.backends.cuda.driver import Kernel, Launch, Source
from strata.bench.probe import Probe
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.load import LoadedModel, load_model

TOOLS = os.environ.get("STRATA_CHECK_TOOLS", sized("memcheck,racecheck,synccheck", "memcheck")).split(",")
FILES = {"racecheck": "planted-narrow.gguf"}
PROMPT, CHUNK = sized((200, 128), (80, 64))
TOOL_SECONDS = float(os.environ.get("STRATA_CHECK_TOOL_SECONDS", "130"))
BUCKETS = tuple(map(int, os.environ.get("STRATA_CHECK_BUCKETS", sized("1,2,4,8,16,32", "1,4")).split(",")))
FILLED = sized(2600, 600)  # cells: several splits of attention, more blocks than are selected
CONTEXT = 4096
FOUND = 9  # exit status of a tool that found something

FAULTY = {
    "racecheck": "__shared__ float s[64]; s[threadIdx.x] = threadIdx.x; out[threadIdx.x] = s[63 - threadIdx.x];",
    "memcheck": "out[threadIdx.x + (1 << 28)] = 1;",
    "synccheck": "if (threadIdx.x % 32 < 16) __syncwarp(); out[threadIdx.x] = 1;",
}


class Planted(Source):
    """A kernel that is wrong; its file's name is the tool that must see it."""

    @property
    def text(self) -> str:
        return f'extern "C" __global__ void wrong(float* out) {{ {FAULTY[self.file]} }}\n'


def run(report: Report) -> None:
    wanted: dict[tuple[str, str], Any] = {}
    for tool in TOOLS:
        path = model_file(FILES.get(tool, "planted-2.gguf"))
        sanitizer = sized(["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)], [])
        planted = {"rc": FOUND} if EMULATED else _child(sanitizer, "plant", tool)
        report[tool] = found = {"sees a planted fault": planted["rc"] == FOUND, "planted": planted}
        for kind in ("steps", "prompt"):
            if (path.name, kind) not in wanted:
                wanted[path.name, kind] = _child([], kind, str(path))["digest"]
                if kind == "steps":
                    report[f"{path.name} equal to the CPU"] = wanted[path.name, kind] == digest_of(path, None)
            found[kind] = ran = _child(sanitizer, kind, str(path))
            found[f"{kind} clean"] = ran["rc"] == 0 and ran["digest"] == wanted[path.name, kind] is not None
            say(
                f"{tool}, {kind}: clean {found[f'{kind} clean']} in {ran.get('seconds')} s, {ran['end'][-300:]}"
            )
        say(f"{tool} sees a planted fault: {found['sees a planted fault']}")


def _child(tool: list[str], *arguments: str) -> Report:
    """This module in a process of its own, under a tool."""
    command = [*tool, sys.executable, "-m", "gpu_check.sanitized", *arguments]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"rc": None, "digest": None, "end": str(error)[-600:]}
    digests = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("digest ")]
    seconds = round(time.perf_counter() - begin, 1)
    text = done.stdout + done.stderr
    races = sorted({line for line in text.splitlines() if "Race reported" in line})
    found = {"rc": done.returncode, "digest": digests[0] if digests else None, "seconds": seconds}
    return {**found, "races": races, "end": text[-3000:]}


def digest_of(path: Path, backend: CudaBackend | None) -> str:
    """Of all logits of some requests, several at once, and of steps after a filled context."""
    options = EngineOptions(
        device="cpu", max_model_len=CONTEXT, max_num_seqs=BUCKETS[-1], kv="int8", prefill=64
    )
    if backend is None or "chunk" not in backend.forms:
        options = replace(options, prefill=0)
    loaded = load_model(path, options, None, backend)
    seen: list[np.ndarray] = []
    loaded.runner.watch = lambda sequences, positions, logits: seen.append(np.array(logits))
    _requests(loaded)
    probe = Probe(loaded, 2)
    probe.fill(FILLED)
    for i in range(2):
        probe.step(FILLED + i)
    return digest(np.concatenate(seen))


def prompt_digest(path: Path, backend: CudaBackend) -> str:
    """Of the logits of a prompt that is read in chunks, the last of them narrower."""
    options = EngineOptions(device="cpu", max_model_len=CONTEXT, kv="int8", prefill=CHUNK)
    loaded = load_model(path, options, None, backend)
    return digest(np.concatenate(list(Engine(loaded).logits([7 + i % 900 for i in range(PROMPT)]))))


def _requests(loaded: LoadedModel) -> None:
    """One row, then more and more at once."""
    engine = Engine(loaded)
    for bucket in BUCKETS:
        for i in range(bucket):
            sampling = SamplingParams(
                max_tokens=2, temperature=i % 2, seed=i, repetition_penalty=1.1, ignore_eos=True
            )
            engine.add([17 + bucket, 5 + i], sampling)
        while engine.scheduler.num_unfinished:
            engine.step()


def plant(tool: str) -> None:
    """A graph of the wrong kernel."""
    driver = open_gpu(0).driver
    out = np.uint64(driver.allocate(256))
    launch = Launch(Kernel(Planted(tool), "wrong"), (1, 1, 1), 64, (out,), dependent=False)
    driver.replay(driver.record([launch]))
    driver.synchronize()


def main(kind: str, argument: str) -> None:
    if kind == "plant":
        plant(argument)
    else:
        made = prompt_digest if kind == "prompt" else digest_of
        print("digest", made(Path(argument), open_gpu(0)))


if __name__ == "__main__":
    main(*sys.argv[1:])
