"""Stages 17 and 18: open choices decided by measure. What is compared takes turns on one loaded model, so that clocks
and caches are the same for all; another choice than the present one wins where it is better by more than turns differ.

17, full size on 24 GiB: whether CPU workers pay in narrow prompt chunks (chunk_share.py); guesses ahead of the next
layer's experts (`AHEAD` of engine/gpu_experts.py); who brings misses, by costs or by a fixed share (`--cpu-share`). 18,
everything resident: how many drafts a step verifies; tiles of a prompt chunk's experts (`TILES` and
`MOST_IN_TURN` of lower_wide.py).
"""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_check import chunk_share
from gpu_check.common import SMALLER, Report, backend_of, in_graph, on_gpu, say
from gpu_check.drafts import Fixed, agree, run_once
from gpu_check.files import model_file
from gpu_check.prompts import TILES, experts_case, tiles
from gpu_check.rehearsal import open_gpu, sized
from gpu_check.settings import setting
from strata.backends.cuda import CudaBackend
from strata.backends.cuda.driver import Driver
from strata.backends.cuda.lower_wide import Tile
from strata.bench.windows import Piece, Windows, load_cycle
from strata.engine import Engine, gpu_experts
from strata.engine.load import LoadedModel

Choice = Callable[[int], float]  # the figure of a turn

MOST = 4  # experts fetched on a guess
PIECE, TURNS = sized((192, 6), (4, 1))  # tokens of a turn; turns of each choice
SHARES = sized((0.0, 0.25, 0.5, 0.75), (0.0, 0.5))
DRAFTS, DIALS = sized(((0, 1, 2, 3, 5, 7), (50, 75, 90)), ((0, 2), (75,)))
TOKENS, DRAFT_TURNS = sized((192, 3), (8, 1))
ROWS, TILE_EXPERTS, TOP = sized(((8192, 2048, 512), 512, 10), ((64,), 4, 2))
LEAST = 0.01  # by which another choice must be better


def run_tiers(report: Report) -> None:
    """Stage 17."""
    path = model_file("planted.gguf")
    with (
        setting(gpu_experts, "AHEAD", MOST),
        on_gpu(
            path, kv="int8", prefill=str(chunk_share.ROWS), max_model_len=sized(4096, 256), **SMALLER
        ) as loaded,
    ):
        report["shared chunks"] = chunk_share.run(loaded, path, compare)
        windows = Windows(loaded, load_cycle(path))
        report["warm-up"] = [round(r.tps, 1) for r in next(windows.rounds(1, say))]
        turns = _Pieces(windows)
        report["share"] = compare("CPU share of misses", _shares(loaded, turns), "by costs", TURNS)
        report["ahead"] = compare("guesses ahead", _guesses(loaded, turns), "no branch", TURNS)


def run_resident(report: Report) -> None:
    """Stage 18."""
    report["tiles"] = {str(rows): _tiles(rows) for rows in ROWS}
    path = model_file("planted.gguf")
    options = {"kv": "int8", "max_model_len": 4096, "mtp": "on", "lookup": "off"}
    with on_gpu(path, **options) as loaded:
        engine, cycle = Engine(loaded), np.load(f"{path}.cycle.npy").tolist()
        run_once(engine, cycle, 1, Fixed(MOST), TOKENS)
        report["drafts"] = {}
        for percent in DIALS:
            name = f"drafts of which {percent} % are right"
            agree(loaded, percent)
            choices = _drafts(engine, cycle)
            report["drafts"][str(percent)] = compare(name, choices, "by costs", DRAFT_TURNS)


def compare(name: str, choices: Mapping[str, Choice], present: str, turns: int) -> Report:
    """Figures of all choices in turns, and which is best; more is better."""
    seen: dict[str, list[float]] = {choice: [] for choice in choices}
    for turn in range(turns):
        order = list(choices) if turn % 2 == 0 else list(choices)[::-1]
        for choice in order:
            seen[choice].append(choices[choice](turn))
    medians = {choice: statistics.median(figures) for choice, figures in seen.items()}
    ratios = {c: [a / b for a, b in zip(seen[c], seen[present], strict=True)] for c in choices}
    gains = {choice: statistics.median(r) - 1 for choice, r in ratios.items()}
    best = max(gains, key=lambda choice: gains[choice])
    sure = gains[best] > LEAST and min(ratios[best]) > 1
    found = {
        "winner": best if sure else present,
        "best, by": [best, round(gains[best], 4)],
        "medians": {choice: round(figure, 2) for choice, figure in medians.items()},
        "gains": {choice: round(gain, 4) for choice, gain in gains.items()},
        "turns": {choice: [round(f, 2) for f in figures] for choice, figures in seen.items()},
    }
    said = ", ".join(f"{c} {m:.1f} ({gains[c]:+.1%})" for c, m in medians.items())
    say(f"{name}: keep {present}; {said}" if found["winner"] == present else f"{name}: {best} wins; {said}")
    return found


class _Pieces:
    """The same pieces of the planted cycle for all choices: one a turn, whose topics change."""

    def __init__(self, windows: Windows):
        self._windows = windows

    def tps(self, turn: int) -> float:
        """Tokens a second of a turn's piece."""
        whole = self._windows.changing[turn % len(self._windows.changing)]
        middle = whole.offset + whole.length // 2 - PIECE // 2
        return self._windows.run([Piece(middle, PIECE)]).tps


def _shares(loaded: LoadedModel, turns: _Pieces) -> dict[str, Choice]:
    """Without guesses: by costs, and fixed."""
    tier = backend_of(loaded).tier
    assert tier is not None

    def choice(share: float) -> Choice:
        def run(turn: int) -> float:
            tier.device.set_ahead(0)
            tier.device.set_share(share)
            try:
                return turns.tps(turn)
            finally:
                tier.device.set_share(-1.0)

        return run

    return {"by costs": choice(-1.0), **{f"{share:g}": choice(share) for share in SHARES}}


def _guesses(loaded: LoadedModel, turns: _Pieces) -> dict[str, Choice]:
    """Steps of one row whose graph has no branch for guesses, and with it any number of guesses."""
    backend, programs = backend_of(loaded), loaded.runner.programs
    tier, branched = backend.tier, programs.step_of
    assert tier is not None
    with setting(tier, "_options", replace(tier._options, ahead=0)):
        plain = backend.lower(branched[1].program)
    straight = (branched[0], replace(branched[1], replay=plain), *branched[2:])

    def choice(step_of: Any, most: int) -> Choice:
        def run(turn: int) -> float:
            loaded.runner.forget_guess()
            programs.step_of = step_of
            tier.device.set_ahead(most)
            return turns.tps(turn)

        return run

    branches = {f"at most {most}": choice(branched, most) for most in (0, 1, 2, MOST)}
    return {"no branch": choice(straight, 0), **branches}


def _drafts(engine: Engine, cycle: list[int]) -> dict[str, Choice]:
    """As costs say, and a fixed number in every step."""

    def choice(decision: Callable[[], Fixed | None]) -> Choice:
        return lambda turn: float(run_once(engine, cycle, 1, decision(), TOKENS)["tps"])

    fixed = {f"{count} drafts": choice(lambda count=count: Fixed(count)) for count in DRAFTS}
    return {"by costs": choice(lambda: None), **fixed}


def _tiles(rows: int) -> Report:
    """Graphs of a chunk's routed experts; the figure is 1,000 of them a second."""
    driver = open_gpu(0).driver
    make = experts_case("IQ3_XXS", "Q2_0", TILE_EXPERTS, rows, TOP)
    first = next(iter(TILES))
    choices = {label: _tile(driver, make, choice) for label, choice in TILES.items()}
    found = compare(f"tiles of experts, {rows} rows", choices, first, sized(5, 1))
    driver.close()
    return found


def _tile(driver: Driver, make: Any, choice: tuple[Tile, int]) -> Choice:
    """A graph of the case's launches with these tiles."""
    with tiles(*choice):
        case, out = make()
        backend = CudaBackend(driver)
        case.run(backend, out)
        launches = backend.lower(case._program).launches
    return lambda turn, kept=backend: 1e3 / in_graph(driver, launches, sized(5, 1))
