"""Decoding at any position without reading what comes before it: pools are filled with pseudo-random values, rows are
stepped by the runner, nodes timed on the device."""

import statistics
import time
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.engine.load import LoadedModel
from strata.engine.plan import DecodeRows, StartedSequence, StepPlan
from strata.engine.request import SamplingParams
from strata.memory.resident import forget_pages

WARM_UP_ROUNDS = 3
_SEED = 1


class Probe:
    """Greedy decoding of `sequences` side by side from any position of a loaded model that does nothing else."""

    def __init__(self, loaded: LoadedModel, sequences: int = 1):
        self.loaded, self.sequences = loaded, sequences
        vocab = loaded.model.config.vocab_size
        self.tokens = np.array([(7 * s + 3) % vocab for s in range(sequences)], np.int32)
        self._rows = np.arange(sequences, dtype=np.int32)  # one array for all steps, as the scheduler has it
        self.void_steps, self.fault = 0, ""  # steps that gave nothing, and what the last of them said
        self._started = tuple(
            StartedSequence(s, [t], SamplingParams()) for s, t in enumerate(self.tokens.tolist())
        )

    def step(self, position: int) -> NDArray[np.int32]:
        """One step of every sequence; its sampled tokens, which the next step reads."""
        for s in range(self.sequences):
            self.loaded.runner.keeper.grow(s, position + 1)
        rows = DecodeRows(self._rows, np.full_like(self._rows, position), self.tokens)
        output = self.loaded.runner.run(StepPlan(rows, started=self._started))
        self._started = ()
        if output.faults:
            self.void_steps, self.fault = self.void_steps + 1, str(next(iter(output.faults.values())))
        self.tokens = output.token_ids
        return self.tokens

    def walk(self, token: int, steps: int) -> NDArray[np.int32]:
        """Greedy tokens of one sequence that begins with `token` and nothing before it."""
        self.loaded.runner.forget_guess()
        self.tokens = np.array([token], np.int32)
        return np.concatenate([self.step(position) for position in range(steps)])

    def rates(self, position: int, steps: int, rounds: int) -> list[float]:
        """Tokens a second of all sequences in each round of steps from `position` on, after WARM_UP_ROUNDS."""
        seen = []
        for i in range(WARM_UP_ROUNDS + rounds):
            begin = time.perf_counter()
            for j in range(steps):
                self.step(position + j)
            if i >= WARM_UP_ROUNDS:
                seen.append(steps * self.sequences / (time.perf_counter() - begin))
        return seen

    def fill(self, cells: int) -> None:
        """Pseudo-random keys, values, index keys and states, as if each sequence had `cells` tokens."""
        runner, generator = self.loaded.runner, np.random.default_rng(_SEED)
        # Of token ids, and of positions of the past.
        most = min(cells, 500, self.loaded.model.config.vocab_size)
        made: dict[Any, NDArray[Any]] = {}
        for sequence in range(self.sequences):
            runner.keeper.grow(sequence, cells)
        for buffer in (*runner.state.paged(), *runner.state.recurrent()):
            key = buffer.shape, buffer.dtype, "scales" in buffer.name, buffer.name.startswith("delta")
            if key not in made:
                made[key] = _random(buffer, generator, most)
            runner.backend.array(buffer)[:] = made[key]
        forget_pages(runner.state.kv, runner.backend.array, range(runner.state.num_pages))

    @property
    def replay(self) -> Any:
        """The forward program of so many rows."""
        return self.loaded.runner.programs.of("step", self.sequences).replay

    def timeline(self) -> list[tuple[str, int, float, float]]:
        """(op kinds and kernel, nodes, microseconds of all, median of one), longest first, of one forward replay with
        an event after each node; nodes do not overlap there."""
        by: dict[str, list[float]] = defaultdict(list)
        for kind, kernel, us in self.replay.timeline():
            by[f"{kind}: {kernel}"].append(us)
        table = sorted(by.items(), key=lambda x: -sum(x[1]))
        return [(kernel, len(us), sum(us), statistics.median(us)) for kernel, us in table]


def _random(buffer: Any, g: np.random.Generator, most: int) -> NDArray[Any]:
    count = int(np.prod(buffer.shape))
    if buffer.dtype in ("i8", "u8"):
        return np.frombuffer(g.bytes(count), {"i8": np.int8, "u8": np.uint8}[buffer.dtype]).reshape(
            buffer.shape
        )
    if buffer.dtype == "i32":
        return (np.frombuffer(g.bytes(4 * count), np.uint32) % most).astype(np.int32).reshape(buffer.shape)
    x = np.resize(g.standard_normal(min(count, 1 << 22)).astype(np.float32), count).reshape(buffer.shape)
    if "scales" in buffer.name:
        x = np.abs(x) * 0.01
    if buffer.name.startswith("delta"):
        x = x * 0.05
    return x.astype({"f16": np.float16, "f32": np.float32}[buffer.dtype])
