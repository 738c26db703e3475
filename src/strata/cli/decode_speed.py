"""`strata benchmark` without a prompt: decoding after a filled context, for minutes, or node by node."""

import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import FaultError, UsageError

if TYPE_CHECKING:
    from strata.bench.probe import Probe
    from strata.config import EngineOptions

_ROUND_SECONDS = 10.0


def decode_benchmark(
    model: Path, options: "EngineOptions", cells: int, steps: int, rounds: int, minutes: int, timeline: bool
) -> list[str]:
    """Lines of the report; a line per round, and per ten seconds of a sustained run, goes to standard error."""
    from strata.bench import Rate
    from strata.bench.probe import Probe
    from strata.engine.load import load_model

    loaded = load_model(model, options)
    replay = loaded.runner.programs.of("step", 1).replay
    if timeline and not hasattr(replay, "timeline"):
        raise UsageError("--timeline needs a GPU: the CPU has one program, not nodes")
    probe = Probe(loaded)
    if cells:
        probe.fill(cells)
    rate = Rate.of(probe.rates(cells, steps, rounds))
    if probe.void_steps:
        raise FaultError(f"{probe.void_steps} steps were void, so there is no rate: {probe.fault}")
    lines = [
        f"generation  {rate.median:9.1f} tok/s, spread {rate.spread:.1%} ({steps} tokens after {cells})",
        *_floor(probe, cells + steps // 2, rate.median),
    ]
    if timeline:
        lines += [
            f"{us:9.1f} us {count:4d} x {each:7.2f}  {kernel}" for kernel, count, us, each in probe.timeline()
        ]
    if minutes:
        lines += _sustained(probe, cells, steps, minutes)
    return lines


def windows_benchmark(model: Path, options: "EngineOptions", warm_up: int) -> list[str]:
    """Lines of the report: windows whose topics change, after rounds to warm up, and one whose topic stays."""
    from strata.bench.tier_report import measured_rates, tier_report
    from strata.bench.windows import Windows, load_cycle
    from strata.cli.progress import ReadProgress
    from strata.engine.load import load_model

    cycle = load_cycle(model)
    loaded = load_model(model, options, progress=ReadProgress())
    if getattr(loaded.runner.backend, "tier", None) is None:
        raise UsageError(
            "--windows needs a GPU that does not hold all experts; --vram-limit-gib makes one smaller"
        )
    rates, windows = measured_rates(loaded), Windows(loaded, cycle)
    rounds = windows.rounds(warm_up + 1, lambda line: print(line, file=sys.stderr))
    reports = [tier_report(loaded, results, rates) for results in rounds]
    names = ["cold", *(f"warm-up {n}" for n in range(2, warm_up + 1)), "windows"]
    lines = [line for name, report in zip(names, reports, strict=True) for line in report.lines(name)]
    lines += tier_report(loaded, [windows.run(windows.staying)], rates).lines("one topic")
    return [
        *lines,
        f"rates       {rates.link / 1e9:9.1f} GB/s link, {rates.cpu / 1e9:.1f} CPU, {rates.ram / 1e9:.1f} RAM",
    ]


def _floor(probe: "Probe", context: int, rate: float) -> list[str]:
    """Milliseconds that reading a token's bytes takes, and its share of the step."""
    from strata import hw

    loaded = probe.loaded
    nbytes = loaded.weight_bytes_per_token + loaded.kv_bytes_per_cell * context
    driver = getattr(loaded.runner.backend, "driver", None)
    device, where = (
        getattr(getattr(driver, "properties", None), "bandwidth", 0.0),
        "at the GPU memory's clock",
    )
    if not device:
        device, where = hw.measure_read_bandwidth(hw.cpu_count()), "RAM read, measured"
    floor = 1e3 * nbytes / device
    return [
        f"bytes moved {nbytes / 1e6:9.1f} MB per generated token",
        f"floor       {floor:9.3f} ms a token at {device / 1e9:.0f} GB/s ({where}); share {floor * rate / 1e3:.1%}",
    ]


def _sustained(probe: "Probe", cells: int, steps: int, minutes: int) -> list[str]:
    from strata.bench.sustained import gpu_state

    end, seen = time.perf_counter() + 60 * minutes, []
    while (begin := time.perf_counter()) < end:
        tokens = 0
        while time.perf_counter() < begin + _ROUND_SECONDS:
            for j in range(steps):
                probe.step(cells + j)
            tokens += steps
        seen.append(tokens / (time.perf_counter() - begin))
        print(f"sustained: {seen[-1]:.1f} tok/s; {gpu_state()}", file=sys.stderr)
    half = len(seen) // 2
    late = statistics.median(seen[half:])
    return [f"sustained   {late:9.1f} tok/s in the second half of {minutes} minutes, least {min(seen):.1f}"]
