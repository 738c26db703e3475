"""What the stages share: the machine in words, engines, decoding at any position, timelines."""

import gc
import hashlib
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gpu_check.rehearsal import EMULATED, open_gpu, sized
from gpu_check.settings import setting
from strata.backends.cuda import CudaBackend
from strata.bench import probe
from strata.bench.probe import Probe
from strata.config import EngineOptions
from strata.engine import Engine
from strata.engine.gpu_experts import set_gpu_costs
from strata.engine.load import LoadedModel, load_model
from strata.errors import DeviceError

if EMULATED:
    probe.WARM_UP_ROUNDS = 0

Report = dict[str, Any]
SMALLER = sized({"vram_limit_gib": 24.0}, {"expert_cache": "16"})  # a GPU that does not hold all experts
SLOW = 22.0  # GB/s of a slower link
after_each: list[Callable[[], None]] = []  # called after every line that is said: the report is saved


def say(text: str) -> None:
    """A line with the time; what was found so far is saved."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)
    for call in after_each:
        call()


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


def load_cpu(path: Path, **options: Any) -> LoadedModel:
    """The file on the CPU, every token in the step form unless said otherwise."""
    return load_model(path, EngineOptions(device="cpu", **{"prefill": "0", "ram_limit_gib": 120, **options}))


def load_gpu(path: Path, **options: Any) -> LoadedModel:
    """The file on the GPU, likewise."""
    gc.collect()  # experts in RAM of a model before
    begin = time.perf_counter()
    chosen = EngineOptions(device="cpu", **{"prefill": "0", "ram_limit_gib": 120, **options})
    loaded = load_model(path, chosen, None, open_gpu(0))
    say(f"{path.name} on the GPU in {time.perf_counter() - begin:.1f} s")
    return loaded


@contextmanager
def on_gpu(path: Path, **options: Any) -> Iterator[LoadedModel]:
    """The file on the GPU, which has its memory back afterwards."""
    loaded = load_gpu(path, **options)
    try:
        yield loaded
    finally:
        close(Engine(loaded))
        gc.collect()


def hold_link(loaded: LoadedModel, gbps: float) -> None:
    """Copies of experts are paced as by a link of so many GB/s, and shares reckon with it."""
    backend = backend_of(loaded)
    tier = backend.tier
    assert tier is not None
    tier._options = replace(tier._options, link_rate=1e9 * gbps)
    tier.device.set_link(1 / gbps)
    set_gpu_costs(backend, loaded.model, EngineOptions(link_limit_gbps=gbps))


def memory(loaded: LoadedModel) -> dict[str, float]:
    """GiB of the GPU: in use with its context, and what the plan gave to experts and left free."""
    driver, placement = backend_of(loaded).driver, loaded.placement
    assert placement.vram is not None
    in_use = driver.properties.memory - driver.free_memory()
    found = {"in use": in_use, "planned": placement.vram.used, "experts": placement.slots.nbytes}
    return {name: round(nbytes / 2**30, 2) for name, nbytes in found.items()}


def close(engine: Engine) -> None:
    """Gives the GPU's memory back, also where it is lost."""
    try:
        engine.close()
    except DeviceError:
        engine.abandon()


class Decoder(Probe):
    """With the device's share of a step."""

    def rate(self, position: int, steps: int, rounds: int = 5) -> dict[str, float]:
        """The median of some rounds, and microseconds of one replay on the device."""
        seen = self.rates(position, *sized((steps, rounds), (1, 1)))
        median = statistics.median(seen)
        return {
            "tps": round(median, 1),
            "spread": round((max(seen) - min(seen)) / median, 4),
            "ms": round(1e3 * self.sequences / median, 4),
            "gpu_ms": round(self.device_us() / 1e3, 4),
            **({"whole": False, "fault": self.fault} if self.void_steps else {}),
        }

    def device_us(self, repeats: int = sized(20, 1)) -> float:
        """Microseconds of one replay of the forward program on the device, events around several."""
        backend = backend_of(self.loaded)
        backend.driver.synchronize()
        first = backend.driver.mark()
        for _ in range(repeats):
            self.replay.submit()
        last = backend.driver.mark()
        backend.driver.synchronize()
        return backend.driver.elapsed(first, last) / repeats

    def parts_us(self, position: int, steps: int = sized(32, 2)) -> dict[str, float]:
        """Medians in steps as they are served: the forward, sampling, and the gaps before each."""
        driver, sampler = backend_of(self.loaded).driver, self.loaded.runner.programs.sampler
        marks: list[Any] = []

        def marked(submit: Any) -> Any:
            def run(*args: Any) -> None:
                marks.append(driver.mark())
                submit(*args)
                marks.append(driver.mark())

            return run

        self.loaded.runner.forget_guess()
        with (
            setting(self.replay, "submit", marked(self.replay.submit)),
            setting(sampler, "submit", marked(sampler.submit)),
        ):
            for i in range(steps):
                self.step(position + i)
        self.loaded.runner.forget_guess()
        driver.synchronize()
        spans = [driver.elapsed(a, b) for a, b in pairwise(marks[: 4 * (len(marks) // 4)])]
        names = ("forward", "before sampling", "sampling", "before the forward")
        return {name: round(statistics.median(spans[i::4]), 1) for i, name in enumerate(names)}

    def table(self) -> dict[str, Any]:
        """Nodes, and microseconds by op kind and kernel."""
        table = self.timeline()
        return {
            "nodes": sum(count for _, count, _, _ in table),
            "sum_us": round(sum(us for _, _, us, _ in table), 1),
            "kernels": [
                {"kernel": k, "count": n, "us": round(us, 1), "each": round(each, 2)}
                for k, n, us, each in table
            ],
        }


def in_graph(driver: Any, launches: list[Any], repeats: int = sized(10, 1)) -> float:
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


def prefix_times(driver: Any, nodes: list[Any]) -> list[float]:
    """Microseconds that each node adds to a graph of those before it."""
    times = [0.0]
    for j in range(1, len(nodes) + 1):
        graph = driver.record(nodes[:j])
        seen = []
        for _ in range(sized(5, 1)):
            first = driver.mark()
            for _ in range(4):
                driver.replay(graph)
            last = driver.mark()
            driver.synchronize()
            seen.append(driver.elapsed(first, last) / 4)
        times.append(statistics.median(seen))
    return [after - before for before, after in pairwise(times)]


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
    """Every sequence's context, as if `cells` tokens had been read."""
    Probe(loaded, loaded.runner.limits.max_num_seqs).fill(cells)


def logits_digest(loaded: LoadedModel, tokens: list[int]) -> str:
    """Of the logits of tokens, teacher-forced in the step form."""
    return digest(np.concatenate(list(Engine(loaded).logits(tokens))))


def same_logits(path: Path, tokens: list[int], **options: Any) -> dict[str, Any]:
    """Whether the logits of tokens have one hash on CPU and GPU."""
    cpu = logits_digest(load_cpu(path, **options), tokens)
    with on_gpu(path, **options) as loaded:
        gpu = logits_digest(loaded, tokens)
    return {"equal": cpu == gpu, "cpu": cpu, "gpu": gpu, "tokens": len(tokens)}
