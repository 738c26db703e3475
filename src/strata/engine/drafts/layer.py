"""The draft layer as programs: a first pass that reads the trunk's rows, passes that read the one before, cells alone.

Passes follow one another on the device: what is sampled goes from one to the next without the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend, Replay
from strata.config import EngineOptions
from strata.engine.drafts.vocabulary import SPARE, LiveVocabulary, chosen
from strata.engine.sample_inputs import SampleInputs
from strata.gguf import ModelFile
from strata.memory import StatePool
from strata.models import DraftModel, DraftPass, Keep, Model
from strata.ops import (
    MAX_STEP_ROWS,
    RING_ROWS,
    Buffer,
    Builder,
    DraftResults,
    Form,
    Program,
    SampleBuffers,
    StepBuffers,
    Weight,
    copy_rows,
    gather_logit_rows,
    keep_recent,
    linear,
    linear_some,
    pass_draft,
    recall_recent,
    sample,
)

Ints = NDArray[np.int32]
NO_CHANCE = np.float32(-1e30)  # logit of a token that is not in the draft vocabulary
_SAMPLED = "sample"  # mark: what comes before makes the draft logits


@dataclass(frozen=True)
class Rows:
    """Rows of the draft layer: cells to fill, each with the token after its position; i32 [n] arrays. Those of a
    sequence follow one another."""

    sequences: Ints
    positions: Ints
    token_ids: Ints

    def __len__(self) -> int:
        return len(self.sequences)


@dataclass(frozen=True)
class LayerOptions:
    """`window`: cells that a draft attends to, 0: all; `vocabulary`: ids that it may propose at first, None: all."""

    window: int = 0
    vocabulary: Ints | None = None


class DraftLayer:
    """Buffers and programs. Lifecycle: made, `programs`, `bind`; then any of `fill`, `first`, `next`."""

    def __init__(
        self,
        model: DraftModel,
        steps: StepBuffers,
        chunks: StepBuffers,
        samples: SampleInputs,
        table: Buffer,
        options: LayerOptions,
    ):
        self._model, self._samples, self._table, self.options = model, samples, table, options
        sequences, context = steps.page_table.shape[0], steps.page_table.shape[1] * 64
        width, vocab = model.draft_width, model.config.vocab_size
        lanes = sequences
        own = _beside(StepBuffers.create(lanes, sequences, context, lanes), steps)
        self._lanes = replace(own, tokens=replace(own.tokens, name="draft_tokens", role="state"))
        rows = StepBuffers.create(MAX_STEP_ROWS, sequences, context, lanes)
        self._rows = replace(
            _beside(rows, steps), num_logit_rows=own.num_logit_rows, logit_rows=replace(own.logit_rows)
        )
        self.ring = Buffer("recent_rows", (sequences, RING_ROWS, width), role="state")
        self.next_tokens = Buffer("next_tokens", chunks.tokens.shape, "i32", "input", live=chunks.num_rows)
        self._hidden = Buffer("draft_hidden", (lanes, width), role="state", live=self._lanes.num_rows)
        self.results = DraftResults.create(lanes)
        self.logits = Buffer("draft_logits", (lanes, vocab), role="output", live=own.num_logit_rows)
        self._sample = _sample_buffers(samples, lanes, own.num_logit_rows)
        self._ids = _id_list(vocab, options) if options.vocabulary is not None else None
        self.lanes = lanes

    def keep(self, form: Form, state: StatePool) -> Keep:
        """What a trunk program of a form ends in: rows for the draft layer, and of a chunk their cells at once."""

        def kept(b: Builder, x: Buffer) -> None:
            keep_recent(b, x, self.ring)
            if form == "chunk":
                b.mark("draft")
                self._model.draft_cells(b, state, self._table, x, self.next_tokens)

        return kept

    def programs(self, state: StatePool, buckets: Sequence[int]) -> list[Program]:
        """The pass that fills cells, first passes by rows, next passes by sequences."""
        self._buckets = tuple(buckets)
        found = [b for b in buckets if b < self.lanes]
        self._lane_buckets = (*found, next((b for b in buckets if b >= self.lanes), self.lanes))
        filling = Builder(self._rows, MAX_STEP_ROWS)
        self._model.draft_cells(filling, state, self._table, recall_recent(filling, self.ring))
        first = [self._first(state, size) for size in self._buckets]
        following = [self._next(state, size) for size in self._lane_buckets]
        return [filling.finish(), *first, *following]

    def _first(self, state: StatePool, size: int) -> Program:
        b = Builder(self._rows, size)

        def kept(b: Builder, x: Buffer) -> None:
            copy_rows(b, gather_logit_rows(b, x), self._hidden)

        self._pass(b, state, recall_recent(b, self.ring), kept)
        return b.finish()

    def _next(self, state: StatePool, size: int) -> Program:
        b = Builder(self._lanes, size)
        self._pass(b, state, self._hidden, lambda b, x: copy_rows(b, x, self._hidden))
        return b.finish()

    def _pass(self, b: Builder, state: StatePool, hidden: Buffer, keep: Keep) -> None:
        def head(b: Builder, x: Buffer, weight: Weight) -> None:
            if self._ids is None:
                linear(b, x, weight, out=self.logits)
            else:
                linear_some(b, x, weight, self._ids, self.logits)

        self._model.draft_forward(b, state, self._table, DraftPass(hidden, keep, head, self.options.window))
        b.mark(_SAMPLED)
        ids, logprobs = sample(b, self.logits, self._sample)
        pass_draft(b, self.results, ids, logprobs, self._lanes.tokens)

    def bind(self, backend: Backend, programs: Sequence[Program]) -> None:
        """Lowers the programs; comes after the backend has its arena."""
        widest_first = sorted(programs, key=lambda p: -p.bucket)
        made = {p: backend.lower(p, own_faults=True) for p in widest_first}
        lowered = [made[p] for p in programs]
        self._backend, self._filling = backend, lowered[0]
        count = len(self._buckets)
        self._first_of = _by_size(self._buckets, lowered[1 : 1 + count], MAX_STEP_ROWS)
        self._next_of = _by_size(self._lane_buckets, lowered[1 + count :], self.lanes)
        self._logits_end = {b: p.marks[_SAMPLED] for b, p in zip(self._buckets, programs[1:], strict=False)}
        at = backend.array
        self._at = {b: at(b) for b in (*self._rows.all(), *self._lanes.all(), self.results.depth)}
        self._drafts, self._next_tokens = at(self.results.drafts), at(self.next_tokens)
        self._at |= {b: at(b) for b in (self._sample.positions, self._sample.params)}
        self._last = self._filling
        if self._ids is not None:
            assert self._ids.live is not None
            self._id_array, self._num_ids = at(self._ids), at(self._ids.live)

    def make_ready(self) -> None:
        """Prepares every replay, so that the first drafts of so many rows wait for no compiler."""
        for replay in {id(r): r for r in (self._filling, *self._first_of, *self._next_of)}.values():
            replay.prepare()

    def prepare(self) -> LiveVocabulary | None:
        """What stays as it is from step to step; once, after the backend has its memory. The vocabulary where it is not
        all."""
        self._at[self._lanes.logit_rows][:] = np.arange(self.lanes)
        if self.options.vocabulary is None:
            return None
        self.forget()
        self.join(self.options.vocabulary, 0)
        return LiveVocabulary(self.options.vocabulary, self.logits.shape[1], self)

    def join(self, ids: Ints, begin: int) -> None:
        """Puts ids into the list of the draft vocabulary from `begin` on, where it then ends."""
        end = begin + len(ids)
        self._id_array[begin:end] = ids
        self._num_ids[:] = np.array([end], np.int32)

    def forget(self) -> None:
        """Lets the logits of ids go that have left the list."""
        self._backend.array(self.logits).fill(NO_CHANCE)

    def follow(self, tokens: Ints) -> None:
        """Tokens after the positions of the chunk that is read next."""
        self._next_tokens[: len(tokens)] = tokens

    def fill(self, rows: Rows) -> None:
        """Cells of up to MAX_STEP_ROWS rows, and nothing more. Where a device fails at it, `wait` says so later."""
        self._write(self._rows, rows.sequences, rows.positions)
        self._at[self._rows.tokens][: len(rows)] = rows.token_ids
        self._filling.submit()

    def first(self, rows: Rows, last: Ints) -> None:
        """Cells of up to MAX_STEP_ROWS rows, and a draft after each of the rows `last`, one of each sequence."""
        self._ask(rows, last)
        self._draft(rows.sequences[last], rows.positions[last], 0, self._first_of[len(rows)])

    def next(self, sequences: Ints, positions: Ints, depth: int) -> None:
        """A draft after those of depth - 1, in cells at `positions`; sequences in the order of the pass before."""
        self._write(self._lanes, sequences, positions)
        self._at[self._lanes.num_logit_rows][0] = len(sequences)
        self._draft(sequences, positions, depth, self._next_of[len(sequences)])

    def wait(self, depth: int, rows: int) -> tuple[Ints, NDArray[np.float32]]:
        """Drafts of `depth` passes, i32 [depth, rows], and their log-probabilities; FaultError where a pass failed."""
        self._last.wait()
        self._last.check()
        return self.results.read(self._drafts, depth, rows)

    def all_logits(self, rows: Rows) -> NDArray[Any]:
        """Draft logits of up to `lanes` rows, float32 [rows, vocab_size]."""
        self._ask(rows, np.arange(len(rows), dtype=np.int32))
        bucket = next(b for b in self._buckets if b >= len(rows))
        self._first_of[len(rows)].run(0, self._logits_end[bucket])
        return np.array(self._backend.array(self.logits)[: len(rows)])

    def _ask(self, rows: Rows, last: Ints) -> None:
        self._write(self._rows, rows.sequences, rows.positions)
        self._at[self._rows.tokens][: len(rows)] = rows.token_ids
        self._at[self._rows.logit_rows][: len(last)] = last
        self._at[self._rows.num_logit_rows][0] = self._at[self._lanes.num_rows][0] = len(last)

    def _write(self, s: StepBuffers, sequences: Ints, positions: Ints) -> None:
        n = len(sequences)
        self._at[s.sequences][:n], self._at[s.positions][:n] = sequences, positions
        self._at[s.rope_positions][:n] = positions[:, None]
        self._at[s.num_rows][0] = n

    def _draft(self, sequences: Ints, positions: Ints, depth: int, replay: Replay) -> None:
        """A draft is the token that its sequence would sample at that place from the draft layer's logits."""
        n, self._last = len(sequences), replay
        self._at[self._sample.params][:n] = self._samples.unmasked(sequences)
        self._at[self._sample.positions][:n] = positions + 1
        self._at[self.results.depth][0] = depth
        replay.submit()


def _beside(own: StepBuffers, steps: StepBuffers) -> StepBuffers:
    """A set with rows of its own that shares what is about sequences."""
    return replace(own, page_table=steps.page_table, commits=steps.commits, constants=steps.constants)


def _sample_buffers(samples: SampleInputs, lanes: int, live: Buffer) -> SampleBuffers:
    """Rows of their own; penalties and biases are the trunk's."""
    trunk = samples.buffers

    def like(buffer: Buffer) -> Buffer:
        return replace(buffer, shape=(lanes, *buffer.shape[1:]), live=live)

    return replace(
        trunk,
        positions=like(trunk.positions),
        params=like(trunk.params),
        out_ids=like(trunk.out_ids),
        out_logprob=like(trunk.out_logprob),
    )


def _id_list(vocab: int, options: LayerOptions) -> Buffer:
    assert options.vocabulary is not None
    most = min(len(options.vocabulary) + SPARE, vocab)
    count = Buffer("num_draft_ids", (1,), "i32", "state")
    return Buffer("draft_ids", (most,), "i32", "state", live=count)


def _by_size(buckets: Sequence[int], replays: Sequence[Replay], most: int) -> tuple[Replay, ...]:
    """By number of rows, from 0 to `most`."""
    at = list(zip(buckets, replays, strict=True))
    return tuple(next(r for b, r in at if b >= n) for n in range(most + 1))


def layer_options(file: ModelFile, model: Model, options: EngineOptions) -> LayerOptions:
    """How the draft layer is built. A head of float values is always used whole; a file that serves nothing is checked
    all the same."""
    draft: Any = getattr(model, "draft", None)
    listed = draft is not None and not draft.output.is_float
    if not listed and options.draft_vocab in ("auto", "full"):
        return LayerOptions(options.mtp_window)
    ids = chosen(file, options.draft_vocab, model.config.vocab_size)
    return LayerOptions(options.mtp_window, ids if listed else None)
