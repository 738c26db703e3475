"""Stage 20: where a drafted step's time goes, everything resident: what each program of it takes, what the GPU waits
before each, and what the host does meanwhile; nodes of a pass of the draft layer."""

import statistics
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import numpy as np

from gpu_check.common import Report, backend_of, on_gpu, prefix_times, say
from gpu_check.drafts import Fixed, agree, run_once, vocabulary
from gpu_check.files import model_file
from gpu_check.rehearsal import sized
from gpu_check.settings import setting
from strata.backends.cuda.replay import CudaReplay
from strata.engine import Engine
from strata.engine.load import LoadedModel

STEPS = sized(24, 2)  # looked at, after as many


class Spans:
    """Marks around every submit of a replay while it is entered."""

    def __init__(self, loaded: LoadedModel):
        programs, layer = loaded.runner.programs, loaded.runner.programs.drafter
        self.loaded, self._driver = loaded, backend_of(loaded).driver
        self._names: dict[int, str] = {id(programs.sampler): "sample"}
        for rows in range(1, 9):
            self._names[id(programs.of("step", rows).replay)] = "verify"
            if layer is not None:
                self._names[id(layer._first_of[rows])] = "first pass"
        if layer is not None:
            self._names |= {id(layer._next_of[1]): "next pass", id(layer._filling): "fill"}
        self.seen: list[tuple[str, Any, Any, float, float]] = []
        self.waits: list[tuple[str, float, float]] = []

    def __enter__(self) -> "Spans":
        submit, wait, driver = CudaReplay.submit, CudaReplay.wait, self._driver

        def marked(replay: CudaReplay, *args: Any) -> None:
            begin, first = time.perf_counter(), driver.mark()
            submit(replay, *args)
            self.seen.append(
                (self._names.get(id(replay), "?"), first, driver.mark(), begin, time.perf_counter())
            )

        def timed(replay: CudaReplay) -> None:
            begin = time.perf_counter()
            wait(replay)
            self.waits.append((self._names.get(id(replay), "?"), begin, time.perf_counter()))

        self._changed = ExitStack()
        self._changed.enter_context(setting(CudaReplay, "submit", marked))
        self._changed.enter_context(setting(CudaReplay, "wait", timed))
        return self

    def __exit__(self, *error: Any) -> None:
        self._changed.close()

    def table(self) -> dict[str, Any]:
        """Median microseconds by the programs' places in a step: on the GPU, before it there, of the host's submit;
        and by name of what was waited for, from a wait's end to the next submit."""
        self._driver.synchronize()
        begins = [i for i, s in enumerate(self.seen) if s[0] == "verify"][STEPS : 2 * STEPS + 1]
        by: dict[tuple[int, str], list[tuple[float, float, float]]] = defaultdict(list)
        for begin, end in pairwise(begins):
            for i in range(begin, end):
                name, first, last, t0, t1 = self.seen[i]
                gap = self._driver.elapsed(self.seen[i - 1][2], first)
                by[i - begin, name].append((self._driver.elapsed(first, last), gap, (t1 - t0) * 1e6))
        found = [
            {"at": at, "program": name, "steps": len(rows)}
            | {
                k: round(statistics.median(r[j] for r in rows), 1)
                for j, k in enumerate(("gpu", "before", "submit"))
            }
            for (at, name), rows in sorted(by.items())
        ]
        step = [(self.seen[b][3] - self.seen[a][3]) * 1e6 for a, b in pairwise(begins)]
        after: dict[str, list[float]] = defaultdict(list)
        for name, _, ended in self.waits:
            later = next((s[3] for s in self.seen if s[3] > ended), None)
            if later is not None:
                after[name].append((later - ended) * 1e6)
        return {
            "programs": found,
            "step_us": round(statistics.median(step), 1) if step else 0.0,
            "host after a wait": {n: round(statistics.median(v), 1) for n, v in after.items()},
        }


def run(report: Report) -> None:
    path = model_file("planted.gguf")
    cycle = np.load(f"{path}.cycle.npy").tolist()
    options = {"kv": "int8", "max_model_len": sized(4096, 256), "draft_vocab": vocabulary(path, cycle)}
    with on_gpu(path, mtp="on", lookup="off", **options) as loaded:
        engine, driver = Engine(loaded), backend_of(loaded).driver
        agree(loaded, 100)
        run_once(engine, cycle, 1, Fixed(7), sized(256, 8))
        for count in sized((1, 2, 3, 5, 7), (1,)):
            with Spans(loaded) as spans:
                run_once(engine, cycle, 1, Fixed(count), sized(2 * STEPS + 20, 3) * (count + 1))
            report[f"{count} drafts"] = spans.table()
            told(f"{count} drafts", report[f"{count} drafts"])
        layer = loaded.runner.programs.drafter
        assert layer is not None
        for name, replay in (
            ("next pass", layer._next_of[1]),
            ("first pass of 2", layer._first_of[2]),
            ("sample", loaded.runner.programs.sampler),
        ):
            nodes = replay.launches
            times = prefix_times(driver, nodes)
            report[name] = [
                (str(n.kernel)[:90], n.grid, n.block, round(us, 2))
                for n, us in zip(nodes, times, strict=True)
            ]
            say(f"{name}: {round(sum(times), 1)} us")
            for line in report[name]:
                say(f"  {line}")


def told(label: str, table: dict[str, Any]) -> None:
    say(
        f"{label}: {table['step_us']} us a step, host from a wait's end to the next submit {table['host after a wait']}"
    )
    for line in table["programs"]:
        say(f"  {line}")
