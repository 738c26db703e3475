"""Reading prompts: times to the first token by length, what part of them is fixed, and where a chunk's time goes."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.engine import Engine, SamplingParams
from strata.engine.plan import ScheduledRows, StepOutput
from strata.errors import ContextLengthError, FaultError
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.ops.linear import LinearF, LinearQ
from strata.ops.op import Op

_SEED = 20
_RUNNING = 128  # tokens of an answer that is under way: the experts of its topics have come
_LONGEST = 8  # gaps that are told
_WARM_UP = 256  # tokens that are decoded before, of another part of the text


@dataclass(frozen=True, slots=True)
class PromptTime:
    """Seconds to the first token of a prompt of so many tokens, the median of some rounds; and of one round, bytes sent
    meanwhile and experts that CPU workers computed."""

    tokens: int
    seconds: float
    link_bytes: int = 0
    cpu_experts: int = 0

    @property
    def tps(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds = fixed + tokens / tps."""

    fixed: float
    tps: float


def fit(times: Sequence[PromptTime]) -> Fit:
    """The line through at least two lengths."""
    slope, fixed = np.polyfit([t.tokens for t in times], [t.seconds for t in times], 1)
    return Fit(float(fixed), float(1 / slope))


def text_of(path: Path, vocab_size: int, count: int) -> NDArray[np.int64]:
    """Tokens to read: the cycle that lies beside a planted file (whose topics change as those of real text do), else
    pseudo-random ones."""
    cycle = Path(f"{path}.cycle.npy")
    if cycle.exists():
        return np.resize(np.load(cycle), count)
    return np.random.default_rng(_SEED).integers(0, vocab_size, count)


class PromptProbe:
    """Reads prompts of an idle engine, each from another part of `text`, after decoding from its end."""

    def __init__(self, engine: Engine, text: NDArray[np.int64]):
        self._engine, self._text, self._at = engine, text, 0

    def warm_up(self, count: int = _WARM_UP) -> None:
        """Decodes on topics that no prompt is about."""
        prompt = self._text[-8:].tolist()
        for _ in self._engine.generate(
            prompt, SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        ):
            pass

    def first_token(self, tokens: int, rounds: int = 1) -> PromptTime:
        """The median time of so many rounds; ContextLengthError where the prompt does not fit."""
        if tokens >= self._engine.max_model_len:
            raise ContextLengthError(
                f"{tokens} tokens and an answer do not fit a context of {self._engine.max_model_len}"
            )
        seen, before = [], self._moved()
        for _ in range(rounds):
            self._engine.forget()
            request = self._engine.add(self._next(tokens), SamplingParams(temperature=0.0, max_tokens=1))
            while request.finish_reason is None:
                self._engine.step()
            if request.error is not None:
                raise request.error
            seen.append(request.timings.first_token - request.timings.arrived)
        sent, computed = ((b - a) // rounds for a, b in zip(before, self._moved(), strict=True))
        return PromptTime(tokens, statistics.median(seen), sent, computed)

    def _next(self, tokens: int) -> list[int]:
        begin = self._at if self._at + tokens <= len(self._text) else 0
        self._at = begin + tokens
        return np.resize(self._text[begin:], tokens).tolist()

    def _moved(self) -> tuple[int, int]:
        """Bytes sent so far, and experts of chunks that the CPU computed."""
        counts = self._engine.tier_counts()
        sent = counts.get("copy_bytes", 0) + counts.get("prompt_copy_bytes", 0)
        return sent, counts.get("prompt_cpu_experts", 0)


def operations(op: Op, rows: int) -> int:
    """Multiplications and additions of an op's products for so many rows; 0 where it has none."""
    if isinstance(op, LinearQ | LinearF):
        n, k = op.weight.shape[-2:]
        return 2 * n * k * rows
    if isinstance(op, ExpertGateUp):
        _, n, k = op.gate.shape
        return 4 * n * k * rows * op.k
    if isinstance(op, ExpertDown):
        _, n, k = op.weight.shape
        return 2 * n * k * rows * op.k
    return 0


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Nodes of one kind in a chunk: how many, microseconds of all, operations of their products."""

    name: str
    count: int
    us: float
    operations: float

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.us * 1e6 if self.us else 0.0


class ChunkTimeline:
    """Where the time of one chunk goes, node by node, by events between them."""

    def __init__(self, engine: Engine, rows: int):
        self._runner, self.rows = engine._runner, rows
        self.lowered = self._runner.programs.of("chunk", rows)

    def measure(self, text: NDArray[np.int64], position: int = 0) -> list[KernelTime]:
        """Times by kernel, longest first, of a chunk at `position`; what lies before it is as it is."""
        runner, program = self._runner, self.lowered.program
        runner.keeper.grow(0, position + self.rows)
        tokens = np.resize(text, self.rows).tolist()
        runner.write("chunk", ScheduledRows(-1, 0, position, tokens, sampled=False))
        self.lowered.run_trunk()
        by: dict[str, list[tuple[float, float]]] = defaultdict(list)
        replay: Any = self.lowered.replay
        parts = [part for part in replay.parts for _ in part.launches]
        times = replay.timeline(repeats=1)
        with suppress(FaultError):
            replay.check()  # nodes one by one, whose inputs are not a prompt's
        for part, (kinds, kernel, us) in zip(parts, times, strict=True):
            work = sum(operations(op, self.rows) for op in program.ops[part.begin : part.end])
            by[f"{kinds}: {kernel}"].append((us, work / len(part.launches)))
        runner.pages.free(0)
        found = [
            KernelTime(name, len(nodes), sum(us for us, _ in nodes), sum(work for _, work in nodes))
            for name, nodes in by.items()
        ]
        return sorted(found, key=lambda k: -k.us)


@dataclass(frozen=True, slots=True)
class Gap:
    """Milliseconds from one step's end to the next one's, and of what it told: its rows, the parts of prompts that it
    started and those that the step before started, which its rows came after; rows of the chunk and the part that comes
    next, 0 where none was read."""

    ms: float
    decode_ms: float
    prompt_ms: float
    before_ms: float
    rows: int
    part: int


@dataclass(frozen=True, slots=True)
class Beside:
    """A prompt read beside running answers: its time, of each answer tokens a second and the longest gap (ms), the
    longest steps, and the median one."""

    prompt: PromptTime
    answers: tuple[tuple[float, float], ...]
    gaps: tuple[Gap, ...]
    median_ms: float


def read_beside(
    engine: Engine, prompt: Sequence[int], starts: Sequence[Sequence[int]], running: int = _RUNNING
) -> Beside:
    """Reads a prompt while answers to `starts` go on, each of which has `running` tokens by then."""
    most = engine.max_model_len - max(len(s) for s in starts) - 1
    going = [engine.add(s, SamplingParams(max_tokens=most, ignore_eos=True)) for s in starts]
    while any(len(r.output_token_ids) < running for r in going):
        engine.step()
    request = engine.add(prompt, SamplingParams(max_tokens=1))
    seen: list[list[float]] = [[perf_counter()] for _ in going]
    counts = [len(r.output_token_ids) for r in going]
    steps: list[Gap] = []
    before, before_ms = perf_counter(), 0.0
    while request.finish_reason is None:
        output = engine.step()
        now = perf_counter()
        steps.append(_gap(1e3 * (now - before), output, before_ms))
        before, before_ms = now, output.prompt_ms
        for i, r in enumerate(going):
            if len(r.output_token_ids) > counts[i]:
                counts[i] = len(r.output_token_ids)
                seen[i].append(now)
    for r in going:
        engine.abort(r)
    if request.error is not None:
        raise request.error
    rates = tuple(
        ((len(times) - 1) / (times[-1] - times[0]), 1e3 * max(b - a for a, b in pairwise(times)))
        for times in seen
    )
    longest = tuple(sorted(steps, key=lambda gap: -gap.ms)[:_LONGEST])
    time = PromptTime(len(prompt), request.timings.first_token - request.timings.arrived)
    return Beside(time, rates, longest, statistics.median(gap.ms for gap in steps))


def _gap(ms: float, output: StepOutput, before_ms: float) -> Gap:
    cursor = output.plan.prompt
    rows = 0 if cursor is None else len(cursor.rows.token_ids)
    return Gap(ms, output.decode_ms, output.prompt_ms, before_ms, rows, output.prompt_part)
