"""What the stages share: the machine in words, engines, decoding at any position, timelines."""

import hashlib
import statistics
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from strata.backends.cuda import CudaBackend, open_gpu
from strata.config import EngineOptions
from strata.engine import Engine, SamplingParams
from strata.engine.load import LoadedModel, load_model
from strata.engine.plan import DecodeRows, StartedSequence, StepPlan

WORK = Path("/dev/shm/strata-check")
Report = dict[str, Any]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def shell(*command: str) -> str:
    """Output of a command, or why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout or done.stderr).strip()


def gpu_state() -> str:
    """Power, clocks, temperature, throttle reasons."""
    fields = "name,driver_version,power.draw,clocks.sm,clocks.mem,temperature.gpu,memory.used,"
    fields += "clocks_event_reasons.active"
    return shell("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")


def digest(rows: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows, np.float32).tobytes()).hexdigest()[:16]


def synth(name: str, *arguments: str) -> Path:
    """A made-up model file in memory, kept between calls on one machine."""
    path = WORK / name
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        code = "from strata.cli import main; main()"
        kind, *rest = arguments
        subprocess.run(
            ["python3", "-c", code, "synth", kind, str(path), *rest], check=True, stdout=subprocess.DEVNULL
        )
        say(f"{name}: {path.stat().st_size / 1e9:.1f} GB in {time.perf_counter() - begin:.0f} s")
    return path


def open_models(path: Path, **options: Any) -> tuple[LoadedModel, LoadedModel]:
    """The file on the CPU and on the GPU."""
    chosen = EngineOptions(device="cpu", prefill=0, **options)
    return load_model(path, chosen), load_gpu(path, **options)


def load_gpu(path: Path, **options: Any) -> LoadedModel:
    """The file on the GPU."""
    begin = time.perf_counter()
    loaded = load_model(path, EngineOptions(device="cpu", prefill=0, **options), None, open_gpu(0))
    say(f"{path.name} on the GPU in {time.perf_counter() - begin:.1f} s")
    return loaded


class Decoder:
    """Greedy decoding of `sequences` side by side from any position."""

    def __init__(self, loaded: LoadedModel, sequences: int = 1):
        self.loaded, self.sequences = loaded, sequences
        self.tokens = [(7 * s + 3) % 1000 for s in range(sequences)]
        started = tuple(StartedSequence(s, [t], SamplingParams()) for s, t in enumerate(self.tokens))
        self._started: tuple[StartedSequence, ...] = started

    def step(self, position: int) -> list[int]:
        """One step of every sequence; its sampled tokens, which the next step reads."""
        sequences = np.arange(self.sequences, dtype=np.int32)
        for s in range(self.sequences):
            self.loaded.runner.keeper.grow(s, position + 1)
        rows = DecodeRows(sequences, np.full_like(sequences, position), np.array(self.tokens, np.int32))
        output = self.loaded.runner.run(StepPlan(rows, started=self._started))
        self._started = ()
        self.tokens = output.token_ids
        return self.tokens

    def rate(self, position: int, steps: int, rounds: int = 5) -> dict[str, float]:
        """Tokens a second of all sequences: three rounds to warm up, then the median; the device's share of a step."""
        seen = []
        for i in range(3 + rounds):
            begin = time.perf_counter()
            for j in range(steps):
                self.step(position + j)
            if i >= 3:
                seen.append(steps * self.sequences / (time.perf_counter() - begin))
        median = statistics.median(seen)
        return {
            "tps": round(median, 1),
            "spread": round((max(seen) - min(seen)) / median, 4),
            "ms": round(1e3 * self.sequences / median, 4),
            "gpu_ms": round(self.device_us() / 1e3, 4),
        }

    def device_us(self, repeats: int = 20) -> float:
        """Microseconds of one replay of the forward program on the device, events around several."""
        replay = self.replay()
        backend = backend_of(self.loaded)
        backend.driver.synchronize()
        first = backend.driver.mark()
        for _ in range(repeats):
            replay.submit()
        last = backend.driver.mark()
        backend.driver.synchronize()
        return backend.driver.elapsed(first, last) / repeats

    def replay(self) -> Any:
        return self.loaded.runner.programs.of("step", self.sequences).replay

    def timeline(self) -> dict[str, Any]:
        """Nodes, and microseconds by op kind and kernel, of one forward replay."""
        nodes = self.replay().timeline()
        by: dict[str, list[float]] = defaultdict(list)
        for kind, kernel, us in nodes:
            by[f"{kind}: {kernel}"].append(us)
        table = sorted(by.items(), key=lambda x: -sum(x[1]))
        return {
            "nodes": len(nodes),
            "sum_us": round(sum(us for _, _, us in nodes), 1),
            "kernels": [
                {"kernel": k, "count": len(v), "us": round(sum(v), 1), "each": round(statistics.median(v), 2)}
                for k, v in table
            ],
        }


def in_graph(driver: Any, launches: list[Any], repeats: int = 10) -> float:
    """Microseconds of a graph of these launches, by events around several replays after one to warm up."""
    graph = driver.record(launches)
    driver.replay(graph)
    driver.synchronize()
    first = driver.mark()
    for _ in range(repeats):
        driver.replay(graph)
    last = driver.mark()
    driver.synchronize()
    return float(driver.elapsed(first, last)) / repeats


def by_kernel(driver: Any, replay: Any) -> list[dict[str, Any]]:
    """What nodes cost inside a graph: a graph of all nodes of each kind, dependent launch as in the step. Values are
    whatever the last step left."""
    kinds: dict[tuple[str, int, tuple[int, ...]], list[Any]] = defaultdict(list)
    for node in replay.launches:
        kinds[str(node.kernel), node.block, node.grid].append(node)
    table = []
    for (kernel, block, grid), nodes in kinds.items():
        us = in_graph(driver, nodes)
        table.append(
            {"kernel": kernel, "grid": grid, "block": block, "count": len(nodes), "us": round(us, 1)}
            | {"each": round(us / len(nodes), 2)}
        )
    return sorted(table, key=lambda x: -float(x["us"]))


def backend_of(loaded: LoadedModel) -> CudaBackend:
    backend = loaded.runner.backend
    assert isinstance(backend, CudaBackend)
    return backend


def fill(loaded: LoadedModel, cells: int) -> None:
    """Pseudo-random keys, values, index keys and states, as if `cells` tokens had been read by each sequence."""
    runner = loaded.runner
    backend, g = backend_of(loaded), np.random.default_rng(1)
    made: dict[Any, np.ndarray] = {}
    for sequence in range(runner.limits.max_num_seqs):
        runner.keeper.grow(sequence, cells)
    for buffer in (*runner.keeper._state.paged(), *runner.keeper._state.recurrent()):
        key = buffer.shape, buffer.dtype, "scales" in buffer.name
        if key not in made:
            made[key] = _random(buffer, g)
        backend.array(buffer)[:] = made[key]


def _random(buffer: Any, g: np.random.Generator) -> np.ndarray:
    count = int(np.prod(buffer.shape))
    if buffer.dtype == "i8":
        return np.frombuffer(g.bytes(count), np.int8).reshape(buffer.shape)
    if buffer.dtype == "i32":
        return (np.frombuffer(g.bytes(4 * count), np.uint32) % 500).astype(np.int32).reshape(buffer.shape)
    x = np.resize(g.standard_normal(min(count, 1 << 22)).astype(np.float32), count).reshape(buffer.shape)
    if "scales" in buffer.name:
        x = np.abs(x) * 0.01
    if buffer.name.startswith("delta"):
        x = x * 0.05
    return x.astype({"f16": np.float16, "f32": np.float32}[buffer.dtype])


def same_logits(path: Path, tokens: list[int], **options: Any) -> dict[str, Any]:
    """Whether the logits of tokens, teacher-forced in the step form, have one hash on CPU and GPU."""
    cpu, gpu = (Engine(loaded) for loaded in open_models(path, **options))
    hashes = [digest(np.concatenate(list(engine.logits(tokens)))) for engine in (cpu, gpu)]
    return {"equal": hashes[0] == hashes[1], "cpu": hashes[0], "gpu": hashes[1], "tokens": len(tokens)}
