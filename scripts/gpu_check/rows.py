"""Nodes of steps of one, two, four and eight rows of one sequence side by side, and what other choices would cost."""

from collections import defaultdict
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np
from gpu_rig import digest

from gpu_check.common import backend_of, by_kernel, in_graph, prefix_times, say
from gpu_check.rehearsal import sized
from gpu_check.settings import setting
from strata.backends.cuda import fuse_sublayer, lower_experts, lower_linear, lower_products, lower_stream
from strata.engine import Engine
from strata.engine.load import LoadedModel
from strata.engine.plan import DecodeRows, StartedSequence, StepPlan
from strata.engine.request import SamplingParams

ROWS = (1, 2, 4, 8)
MORE = sized((16, 32), (16,))  # whose kernels are told apart
_RING = ((256, 3), (128, 3), (256, 2))
# Settings of the lowering, by name: what a visit may flip.
CHOICES: dict[str, list[tuple[Any, str, Any]]] = {
    "as it is": [],
    "products: one item a thread block": [(lower_stream, "STREAM", {1: lower_stream.STREAM[2]})],
    "products: 8 warps or fewer": [(lower_stream, "STREAM", {1: lower_stream.STREAM[2], 8: _RING})],
    "last product: one wave from 2 rows on": [(lower_products, "ONE_WAVE_FROM", 2)],
    "last product: one wave never": [(lower_products, "ONE_WAVE_FROM", 99)],
    "experts: rows apart": [(lower_experts, "TOGETHER", range(0))],
    "streams: rows apart": [(fuse_sublayer, "TOGETHER", {})],
    "streams: two rows normed together, mixed apart": [(fuse_sublayer, "TOGETHER", {8: (2, 1)})],
    "float products: linear_row and linear_f": [(lower_linear, "PAIRS", {1: 2})],
}


def side_by_side(loaded: LoadedModel, cycle: list[int]) -> dict[str, Any]:
    """Prints a line for each kernel of the one-row step; inputs are those of the text's first tokens."""
    runner, driver = loaded.runner, backend_of(loaded).driver
    found: dict[str, Any] = {"equal": equal(loaded, cycle)}
    say(f"logits of steps of so many rows are those of one: {found['equal']}")
    nodes: dict[int, Any] = {}
    each: dict[int, list[float]] = {}
    for count in ROWS:
        _step(loaded, cycle, count)
        launches = runner.programs.of("step", count).replay.launches
        nodes[count] = launches[: sized(len(launches), 8)]
        each[count] = prefix_times(driver, nodes[count])
        found[f"step of {count}"] = round(in_graph(driver, nodes[count]), 1)
    one = found[f"step of {ROWS[0]}"]
    say(f"rows: {[(n, found[f'step of {n}'], round(found[f'step of {n}'] / one, 2)) for n in ROWS]}")
    found["kernels"] = table(nodes, each)
    for line in found["kernels"]:
        say(f"  {line}")
    for count in MORE:
        _step(loaded, cycle, count)
        replay = runner.programs.of("step", count).replay
        found[f"step of {count}"] = round(in_graph(driver, replay.launches), 1)
        found[f"kernels of {count}"] = by_kernel(driver, replay)
        say(f"{count} rows: {found[f'step of {count}']} us")
        for line in found[f"kernels of {count}"]:
            say(f"  {line}")
    found["choices"] = _choices(loaded, cycle)
    return found


def equal(loaded: LoadedModel, cycle: list[int], tokens: int = 24) -> dict[int, bool]:
    """Whether logits of the text's first tokens have one hash in steps of one row and of more."""
    engine = Engine(loaded)
    hashes = {n: digest(engine, cycle, (n,) * (tokens // n)) for n in ROWS}
    return {n: h == hashes[ROWS[0]] for n, h in hashes.items() if n != ROWS[0]}


def table(nodes: dict[int, Any], each: dict[int, list[float]]) -> list[dict[str, Any]]:
    """Of launches and their microseconds by rows: nodes at the same places of the steps side by side, by the first
    step's kernel and grid, longest first. Steps of another number of nodes are left out."""
    first = min(nodes)
    alike = [n for n in sorted(nodes) if len(nodes[n]) == len(nodes[first])]
    by: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(nodes[first]):
        by[f"{node.kernel.entry} {'x'.join(map(str, node.grid))}"].append(i)
    lines = []
    for kernel, places in sorted(by.items(), key=lambda x: -sum(each[first][i] for i in x[1])):
        us = {n: round(median(each[n][i] for i in places), 2) for n in alike}
        last = nodes[alike[-1]][places[0]]
        shape = f"{last.kernel.entry} {'x'.join(map(str, last.grid))}"
        lines.append({"kernel": kernel, "count": len(places), "us": us, f"at {alike[-1]}": shape})
    return lines


def _choices(loaded: LoadedModel, cycle: list[int]) -> dict[str, dict[int, float]]:
    """Microseconds of steps of two rows and more, lowered with other settings."""
    backend, found = backend_of(loaded), dict[str, dict[int, float]]()
    for name, settings in CHOICES.items():
        found[name] = {}
        for count in ROWS[1:]:
            _step(loaded, cycle, count)
            with ExitStack() as changed:
                for module, key, value in settings:
                    changed.enter_context(setting(module, key, value))
                replay = backend.lower(loaded.runner.programs.of("step", count).program)
            found[name][count] = round(in_graph(backend.driver, replay.launches), 1)
        say(f"{name}: {found[name]} us")
    return found


def _step(loaded: LoadedModel, cycle: list[int], count: int) -> None:
    """A step of the text's first tokens as rows of one sequence, all but the first drafts."""
    loaded.runner.forget_guess()
    loaded.runner.keeper.grow(0, count)
    places, tokens = np.arange(count, dtype=np.int32), np.array(cycle[:count], np.int32)
    rows = DecodeRows(np.zeros_like(places), places, tokens, counts=np.array([count], np.int32))
    started = StartedSequence(0, tokens[:1].tolist(), SamplingParams())
    loaded.runner.run(StepPlan(rows, started=(started,)))
