"""What the miss schedule goes by: rates of the link, of the serving kernels and of RAM, measured once a machine."""

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from strata import hw, log
from strata.backends.cpu import CpuBackend
from strata.ops import Buffer, Builder, ExpertWeights, StepBuffers, group_by_expert, routed_experts

VERSION = 2
_SECONDS = 0.05  # of each measurement
_ROWS = 8
_TURNING = 160  # experts that take turns: more than caches hold, few enough to be mapped before
_LEAST_READ, _MOST_READ = 64 << 20, 1 << 30  # bytes of RAM that are read
_READ_SHARE = 256  # one part of so many of what is free
_POST_NS = 20_000.0  # handing a list to sleeping workers and taking it back, where nothing was measured


@dataclass(frozen=True)
class MissCosts:
    """Nanoseconds, as `MissCosts` of native/include/strata/tiers.h: a byte each, and a post."""

    link_byte: float
    cpu_byte: float
    cpu_row_byte: float
    ram_byte: float
    cpu_post: float = _POST_NS

    def values(self) -> list[float]:
        """In the order of `SimDevice.set_costs`."""
        return [self.link_byte, self.cpu_byte, self.cpu_row_byte, self.ram_byte, self.cpu_post]


def machine_costs(
    experts: ExpertWeights, threads: int, isa: str, link_rate: float, directory: Path | None = None
) -> MissCosts:
    """Costs for experts of these types: kept ones of this machine, else measured and kept; a link rate that is given
    (bytes a second) stands for the measured one."""
    path = (directory or hw.cache_directory()) / "rates" / f"{_key(experts, threads, isa)}.json"
    costs = _load(path)
    if costs is None:
        costs = measure_costs(experts, threads, isa)
        _save(path, costs)
    return costs if not link_rate else MissCosts(**{**asdict(costs), "link_byte": 1e9 / link_rate})


def measure_costs(experts: ExpertWeights, threads: int, isa: str) -> MissCosts:
    """Measured with the serving kernels on rows of one and of several tokens, on experts that take turns."""
    one, many = (_expert_ns(experts, threads, isa, rows) for rows in (1, _ROWS))
    row = max(many - one, 0.0) / (_ROWS - 1)
    size = min(max(hw.memory().available // _READ_SHARE, _LEAST_READ), _MOST_READ)
    read = hw.measure_read_bandwidth(threads, seconds=_SECONDS, size=size)
    return MissCosts(_copy_ns(), max(one - row, 1e-4), row, 1e9 / read)


def _expert_ns(experts: ExpertWeights, threads: int, isa: str, rows: int) -> float:
    """Nanoseconds a byte of an expert that `rows` rows have chosen, two experts a step."""
    count, _, hidden = experts.gate.shape
    k = min(2, count)
    steps = StepBuffers.create(rows, 1, 64, rows)
    b = Builder(steps, rows)
    x = Buffer("x", (rows, hidden), "f32", "input", live=steps.num_rows)
    ids = Buffer("ids", (rows, k), "i32", "input", live=steps.num_rows)
    routed_experts(b, x, group_by_expert(b, ids, count), experts)
    program, backend = b.finish(), CpuBackend(threads, isa)
    backend.reserve(program.arena_bytes)
    replay = backend.lower(program)
    backend.array(steps.num_rows)[0] = rows
    backend.array(x)[:] = np.random.default_rng(1).standard_normal((rows, hidden))
    turn, turning = 0, min(count, _TURNING)

    def step() -> None:
        nonlocal turn
        backend.array(ids)[:] = [(turn * k + i) % turning for i in range(k)]
        turn += 1
        replay.run()

    for _ in range(-(-turning // k)):  # their pages are mapped then, as those of experts in RAM are
        step()
    planes = (experts.gate, experts.up, experts.down)
    return _best_ns(step) / (k * sum(w.nbytes // w.shape[0] for w in planes))


def _copy_ns(nbytes: int = 4 << 20) -> float:
    """Nanoseconds a byte of a copy in RAM, what a pretended link is made of."""
    source = np.ones(4 * nbytes, np.uint8)
    target = np.empty(nbytes, np.uint8)
    place = 0

    def copy() -> None:
        nonlocal place
        target[:] = source[place * nbytes : (place + 1) * nbytes]
        place = (place + 1) % 4

    return _best_ns(copy) / nbytes


def _best_ns(run: Callable[[], None]) -> float:
    """The fastest of some runs: whatever else the machine does can only slow one down."""
    run()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter_ns()
        run()
        best = min(best, time.perf_counter_ns() - start)
    return max(best, 1.0)


def _key(experts: ExpertWeights, threads: int, isa: str) -> str:
    types = "-".join(w.format.name for w in (experts.gate, experts.up, experts.down))
    level = hw.isa_level() if isa == "auto" else isa
    return f"{platform.node() or 'machine'}-{level}-{threads}-{types}-{experts.gate.shape[2]}x{experts.gate.shape[1]}"


def _load(path: Path) -> MissCosts | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.pop("version") != VERSION:
            return None
        costs = MissCosts(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.logger(__name__).warning("%s is left aside: %s", path, error)
        return None
    sound = all(isinstance(v, float) and 0 <= v < 1e6 for v in costs.values())
    return costs if sound else None


def _save(path: Path, costs: MissCosts) -> None:
    part = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, part = tempfile.mkstemp(".part", path.name + ".", path.parent)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump({"version": VERSION, **asdict(costs)}, file)
        Path(part).replace(path)
    except OSError as error:
        log.logger(__name__).warning("%s cannot be saved: %s", path, error.strerror)
        with suppress(OSError):
            Path(part).unlink()


def set_costs(
    backend: object, layers: Sequence[ExpertWeights], threads: int, isa: str, link_rate: float
) -> None:
    """Gives a device with a miss schedule this machine's costs; others are left alone."""
    device = getattr(backend, "device", None)
    if device is not None and layers:
        device.set_costs(machine_costs(layers[0], threads, isa, link_rate).values())
