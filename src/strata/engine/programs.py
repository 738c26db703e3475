"""The programs of a model, lowered: the step form in buckets of rows, the chunk form in parts, and sampling."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend, PeekingReplay, Replay
from strata.engine.drafts.layer import DraftLayer, LayerOptions
from strata.engine.keeper import Keeper
from strata.engine.routes import RouteTracer
from strata.engine.sample_inputs import SampleInputs
from strata.errors import UnsupportedError
from strata.memory import StatePool
from strata.models import DraftModel, Model
from strata.ops import (
    MAX_STEP_ROWS,
    Buffer,
    Builder,
    Form,
    Program,
    ResultsRing,
    StepBuffers,
    count_tokens,
    publish,
    sample,
)

STEP_BUCKETS = (1, 2, 4, 8, 16, MAX_STEP_ROWS)
# Rows of the programs of short prompts, and of what is left of long ones.
NARROW_CHUNKS = (64, 128, 256, 1024, 4096)


@dataclass(frozen=True)
class Limits:
    """What the runner is built for."""

    max_model_len: int
    max_num_seqs: int
    chunk_rows: int  # rows of a prompt chunk, a multiple of 64; 0: no chunk form
    step_buckets: tuple[int, ...] = STEP_BUCKETS
    narrow_chunks: tuple[int, ...] = ()

    @property
    def chunk_buckets(self) -> tuple[int, ...]:
        """Rows of the chunk programs, the widest first: its scratch decides the arena."""
        narrow = [rows for rows in self.narrow_chunks if rows < self.chunk_rows]
        return (self.chunk_rows, *sorted(narrow, reverse=True)) if self.chunk_rows else ()


@dataclass(frozen=True)
class Lowered:
    """A program and its replay. `borders`: where its parts begin, each ending after a layer; the last is the head's."""

    program: Program
    replay: Replay
    borders: tuple[int, ...]

    @classmethod
    def of(cls, program: Program, replay: Replay) -> "Lowered":
        """Parts by the program's marks; what comes before the first layer belongs to it."""
        layers = sorted(set(program.marks.values()) - {0})
        first = program.marks.get("layer.0")
        return cls(program, replay, (0, *(at for at in layers if at != first)))

    @property
    def head(self) -> int:
        """The part that makes logits."""
        return len(self.borders) - 1

    def run_part(self, part: int) -> None:
        """Runs one part."""
        self.replay.run(*self.part(part))

    def submit_part(self, part: int) -> None:
        """Starts one part."""
        self.replay.submit(*self.part(part))

    def prepare(self) -> None:
        """Makes the replays ready: of a chunk part by part, of a step whole."""
        parts = range(self.head + 1) if self.program.bucket > MAX_STEP_ROWS else ()
        for begin, end in [self.part(part) for part in parts] or [(0, None)]:
            self.replay.prepare(begin, end)

    def part(self, part: int) -> tuple[int, int | None]:
        """Ops [begin, end) of a part."""
        return self.borders[part], self.borders[part + 1] if part < self.head else None

    @property
    def features(self) -> tuple[Buffer, int]:
        """What the head's last product reads, float32 [wanted rows, width], and the op that it is complete before."""
        ops = self.program.ops
        at = len(ops) - 2 if ops[-2].kind == "quantize" else len(ops) - 1
        return ops[at].inputs[0], at

    def run_features(self) -> NDArray[Any]:
        """Features of the wanted rows, after the trunk has run; a view until the next run."""
        if not isinstance(self.replay, PeekingReplay):
            raise UnsupportedError(
                "this backend does not give the features of rows, so there are no embeddings"
            )
        buffer, at = self.features
        self.replay.run(self.borders[self.head], at)
        return self.replay.peek(buffer)

    def run_trunk(self) -> None:
        """Everything but the head."""
        self.replay.run(0, self.borders[self.head])


@dataclass(frozen=True)
class Inputs:
    """Step inputs. A chunk may stand between two layers while steps run: it has rows and taps of its own, and shares
    what is about sequences, and the wanted rows, which are written just before its head runs. Settling, between steps,
    has a row of its own."""

    step: StepBuffers
    chunk: StepBuffers
    settling: StepBuffers

    @classmethod
    def create(cls, limits: Limits) -> "Inputs":
        """Buffers for what the limits allow."""
        sequences = (limits.max_num_seqs, limits.max_model_len, MAX_STEP_ROWS)
        step = StepBuffers.create(MAX_STEP_ROWS, *sequences)

        def beside(rows: int) -> StepBuffers:
            return replace(
                StepBuffers.create(rows, *sequences),
                page_table=step.page_table,
                commits=step.commits,
                num_logit_rows=step.num_logit_rows,
                logit_rows=step.logit_rows,
                constants=step.constants,
            )

        return cls(step, beside(max(limits.chunk_rows, 1)), beside(1))

    def of(self, form: Form) -> StepBuffers:
        """The set that programs of a form read."""
        return self.step if form == "step" else self.chunk

    def all(self) -> tuple[Buffer, ...]:
        """Every buffer once."""
        return tuple(dict.fromkeys((*self.step.all(), *self.chunk.all(), *self.settling.all())))


class Programs:
    """Lowers everything once. Chunks have an arena of their own, for steps run while one stands still."""

    def __init__(
        self,
        model: Model,
        state: StatePool,
        limits: Limits,
        inputs: Inputs,
        tracer: RouteTracer | None = None,
        drafts: LayerOptions | None = None,
    ):
        self._model, self._state, self._inputs, self._tracer = model, state, inputs, tracer
        self._table = model.config.rope.table(limits.max_model_len)
        live, vocab = inputs.step.num_logit_rows, model.config.vocab_size
        self.logits = Buffer("logits", (MAX_STEP_ROWS, vocab), role="output", live=live)
        self.samples = SampleInputs(inputs.step, limits.max_num_seqs, vocab)
        self.ring = ResultsRing.create(MAX_STEP_ROWS)
        self.drafter: DraftLayer | None = None
        if getattr(model, "draft", None) is not None:
            drafted, options = cast(DraftModel, model), drafts or LayerOptions()
            self.drafter = DraftLayer(drafted, inputs.step, inputs.chunk, self.samples, self._table, options)
        self._limits = limits
        self.step_of: tuple[Lowered, ...] = ()  # by number of rows
        self.chunks: tuple[Lowered, ...] = ()  # the narrowest first

    def lower(self, backend: Backend, keeper: Keeper) -> None:
        """Builds all programs, then lowers them, when the arenas' sizes are known."""
        steps = [self._forward("step", size) for size in self._limits.step_buckets]
        chunks = [self._forward("chunk", rows) for rows in self._limits.chunk_buckets]
        sampler, settling = self._sampler(backend), keeper.program()
        sizes = self._limits.step_buckets
        draft = [] if self.drafter is None else self.drafter.programs(self._state, sizes)
        backend.reserve(max(p.arena_bytes for p in (*steps, sampler, settling, *draft)))
        backend.reserve(max((p.arena_bytes for p in chunks), default=0), "chunk")
        # Those that take the most scratch first: it is enough for the others.
        self.sampler = backend.lower(sampler)
        buckets = [Lowered.of(p, backend.lower(p)) for p in reversed(steps)]
        self.step_of = _by_rows(buckets[::-1])
        keeper.bind(settling)
        if self.drafter is not None:
            self.drafter.bind(backend, draft)
        self.chunks = tuple(Lowered.of(p, backend.lower(p, "chunk")) for p in chunks)[::-1]

    def prepare(self) -> None:
        """Makes every replay ready, so that no step waits for a compiler."""
        for lowered in {*self.step_of, *self.chunks}:
            lowered.prepare()
        self.sampler.prepare()
        if self.drafter is not None:
            self.drafter.make_ready()

    def of(self, form: Form, rows: int) -> Lowered:
        """The smallest program of a form that holds so many rows."""
        if form == "step":
            return self.step_of[rows]
        return next(lowered for lowered in self.chunks if lowered.program.bucket >= rows)

    def _forward(self, form: Form, size: int) -> Program:
        make = Builder if self._tracer is None else self._tracer.builder
        b = make(self._inputs.of(form), size, form)
        if self.drafter is None:
            self._model.forward(b, self._state, self._table, self.logits)
        else:
            model = cast(DraftModel, self._model)
            keep = self.drafter.keep(form, self._state)
            model.forward(b, self._state, self._table, self.logits, keep)
        return b.finish()

    def _sampler(self, backend: Backend) -> Program:
        b, counts = Builder(self._inputs.step, MAX_STEP_ROWS), self.samples.buffers.counts
        if not isinstance(backend.array(counts), np.ndarray):  # where the host cannot count by itself
            count_tokens(b, self.samples.counting, counts)
        sample(b, self.logits, self.samples.buffers)
        publish(b, self.ring, self.samples.buffers.out_ids, self.samples.buffers.out_logprob)
        return b.finish()


def _by_rows(buckets: Sequence[Lowered]) -> tuple[Lowered, ...]:
    return tuple(next(b for b in buckets if b.program.bucket >= n) for n in range(MAX_STEP_ROWS + 1))
