"""The runner: writes a step's inputs, replays its programs, and says what was sampled. Everything is fixed at load."""

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend, Replay
from strata.engine.ahead import RunAhead
from strata.engine.chunk_parts import ChunkParts
from strata.engine.drafts.chain import Run
from strata.engine.drafts.following import Following
from strata.engine.drafts.layer import LayerOptions
from strata.engine.drafts.verify import Verifier
from strata.engine.keeper import Keeper
from strata.engine.plan import Ints, PromptCursor, ScheduledRows, StepOutput, StepPlan
from strata.engine.pooling import Pooling
from strata.engine.programs import Inputs, Limits, Lowered, Programs
from strata.engine.routes import RouteTracer
from strata.engine.row_writer import RowWriter
from strata.engine.sample_inputs import SampleInputs, log_probabilities
from strata.errors import FaultError
from strata.memory import PageTable, StatePool
from strata.memory.expert_store import expert_layers
from strata.models import Model
from strata.ops import MAX_STEP_ROWS, Form, StepBuffers

# Is told (sequences, positions, logits [n, vocab_size]) of every row that is sampled.
Watch = Callable[[Ints, Ints, NDArray[Any]], None]


class Runner:
    """A step writes inputs and replays two programs; a chunk runs in parts, with steps between them."""

    def __init__(
        self,
        model: Model,
        backend: Backend,
        state: StatePool,
        limits: Limits,
        tracer: RouteTracer | None = None,
        drafts: LayerOptions | None = None,
    ):
        self.limits, self.backend, self.model, self.state = limits, backend, model, state
        self.pages = PageTable(state.num_pages)
        self._buffers = Inputs.create(limits)
        self.programs = Programs(model, state, limits, self._buffers, tracer, drafts)
        self.keeper = Keeper(backend, self._buffers.settling, state, self.pages)
        self.programs.lower(backend, self.keeper)
        self._tracer = tracer
        if tracer is not None:
            tracer.bind(backend)
        self._at = {b: backend.array(b) for b in self._buffers.all()}
        self._rows = RowWriter(self._buffers, self._at)
        self._logits = backend.array(self.programs.logits)
        self._samples = self.programs.samples
        self._samples.bind(backend)
        ring = self.programs.ring
        self._step_number, self._results = backend.array(ring.step), backend.array(ring.ring)
        self.recurrent = bool(state.recurrent())
        self._step = 0
        self._ahead = RunAhead(self)
        layer = self.programs.drafter
        self.following = None if layer is None else Following(layer, limits.max_num_seqs)
        self._verifier = Verifier(self, self.following)
        self.watch: Watch | None = None
        self._parts = ChunkParts(backend)
        self._pooling: dict[int, Pooling] = {}  # by sequence, where a prompt's features are wanted

    def run(self, plan: StepPlan) -> StepOutput:
        """The cursor's parts while its budget lasts, then the plan's rows; samples where it asks for it."""
        self._ahead.meet(plan)
        for started in plan.started:
            self._samples.start(started)
            self._verifier.start(started)
            if self.following is not None:
                self.following.start(started)
            self._pooling.pop(started.sequence, None)
            if started.pooling is not None:
                self._pooling[started.sequence] = started.pooling
        if not plan.reading:
            self.backend.end_prompts()
        output = StepOutput(plan, prompt_part=plan.prompt.part if plan.prompt else 0)
        if not len(plan.decode) or plan.tails:
            self._read(plan, output)
            self._read_end(plan, output)
        begin = perf_counter()
        if plan.tails:
            self.compute(plan, output)
            output.decode_ms = (perf_counter() - begin) * 1e3 - output.draft_ms
        elif len(plan.decode.sequences):
            if plan.decode.counts is not None:
                self._verifier.run(plan, output)
            else:
                self._decode(plan, output)
            output.decode_ms = output.decode_ms or (perf_counter() - begin) * 1e3 - output.draft_ms
            self._read(plan, output)
            self._read_end(plan, output)
        self._parts.settle(output)
        return output

    def _read(self, plan: StepPlan, output: StepOutput) -> None:
        """Starts parts of the plan's chunk, where none is started and it may begin."""
        cursor = plan.prompt
        if cursor is None or cursor.rows.sequence in output.faults:
            return
        if output.prompt_part > cursor.part or output.prompt_waits:
            return
        chunk = self.programs.of("chunk", len(cursor.rows.token_ids))
        try:
            if cursor.part == 0:
                output.prompt_waits = len(plan.decode) > 0 and not chunk.replay.ready()
                if output.prompt_waits:
                    return
                self._begin_chunk(chunk, cursor)
            self._parts.start(chunk, cursor, output, self._start_part)
        except FaultError as fault:
            output.faults[cursor.rows.sequence], output.prompt_part = fault, 0

    def _begin_chunk(self, chunk: Lowered, cursor: PromptCursor) -> None:
        self._parts.drain()
        with suppress(FaultError):
            chunk.replay.check()  # of a chunk that was given up
        self.write("chunk", cursor.rows)
        self._rows.taps(cursor.taps)
        if self.following is not None:
            self.following.chunk_begins(cursor.rows)

    def _read_end(self, plan: StepPlan, output: StepOutput) -> None:
        """What follows a chunk's last layer, when all of them are started: waits for them. Beside rows that decode that
        is in the next step, whose rows come after them."""
        if plan.prompt is None or plan.prompt.rows.sequence in output.faults:
            return
        rows = plan.prompt.rows
        chunk = self.programs.of("chunk", len(rows.token_ids))
        if output.prompt_part < chunk.head or (len(plan.decode) and plan.prompt.part < chunk.head):
            return
        output.prompt_part = 0
        try:
            chunk.replay.wait()
            chunk.replay.check()
            self.commit({rows.sequence: 0})
            self.trace(len(rows.token_ids), "chunk")
            if self.following is not None:
                self.following.chunk_done(rows)
            if rows.sequence in self._pooling:
                self._pool(chunk, rows, 0)
            if rows.sampled:
                self._head(chunk.head, rows, output)
        except FaultError as fault:
            output.faults[rows.sequence] = fault

    def _start_part(self, chunk: Lowered, part: int) -> None:
        """The last part before the head is the draft layer's, where there is one: its faults cost drafts alone, so that
        those of the parts before it are looked for first."""
        if self.following is None or part != chunk.head - 1:
            chunk.submit_part(part)
            return
        chunk.replay.wait()
        chunk.replay.check()
        try:
            chunk.run_part(part)
        except FaultError:
            self.following.chains.faults += 1

    def _head(self, part: int, rows: ScheduledRows, output: StepOutput) -> None:
        """Logits and the token after a prompt that ends with a chunk."""
        self.want(np.array([len(rows.token_ids) - 1]))
        self.programs.of("chunk", len(rows.token_ids)).run_part(part)
        sequences, positions = np.array([[rows.sequence], [rows.end - 1]], np.int32)
        self.prepare(sequences, positions)
        token = int(self._sample(sequences, positions, output)[0])
        output.prompt_token_ids[rows.request_id] = token
        if self.following is not None:
            self.following.sampled(rows.sequence, token)

    def _decode(self, plan: StepPlan, output: StepOutput) -> None:
        """Rows that all decode: sampling follows without a wait; so does the next forward where it can run ahead, or
        a prompt's parts."""
        decode = plan.decode
        self.prepare(decode.sequences, decode.positions)
        if self._samples.masked:
            output.faults.update(self._samples.fill_masks(decode.sequences))
        timer = self._parts.timer(plan)
        try:
            self.start_rows(plan)
            self.programs.sampler.submit()
            self._samples.counted()
            self.commit_one(decode.sequences)
            timer.stop()
            self._read(plan, output)
            # a chunk has the same logits, and its faults would be mistaken
            if plan.prompt is None and not decode.hold:
                self._ahead.begin(decode)
            self._ahead.wait(self._results, self._step)
            output.decode_ms = timer.ms
        except FaultError as fault:
            if self._ahead.lost(fault, decode, output):
                return
            self._alone(plan, fault, output)
            return
        self.trace(len(decode.sequences), "step")
        tokens = self.published()
        output.token_ids = self._sampled(decode.sequences, decode.positions, tokens, output)
        if self.following is not None:
            self.following.decoded(decode.sequences, decode.positions, decode.token_ids, tokens)

    def start_rows(self, plan: StepPlan) -> None:
        """Starts the forward of the plan's rows, where it is not running already."""
        if not self._ahead.taken:
            self.write_rows(plan).submit()

    def verify_ahead(self, sequences: Ints, positions: Ints, token_ids: Ints, run: Run) -> None:
        """Starts the forward that verifies the drafts of chains that are on their way, after the newest tokens."""
        self._ahead.verify(sequences, positions, token_ids, run)

    def forget_guess(self) -> None:
        """What runs ahead is not what comes next."""
        self._ahead.drop()

    def commit_one(self, sequences: Ints) -> None:
        """One row of each became state, where there is any."""
        if self.recurrent:
            self._at[self._buffers.step.commits][sequences] = 1

    def commit_none(self, sequences: Ints) -> None:
        """The last step's row of each is not state yet."""
        if self.recurrent:
            self._at[self._buffers.step.commits][sequences] = 0

    def published(self) -> Ints:
        """Tokens of the last step that was sampled; negative where there is none."""
        return self.programs.ring.ids(self._results, self._step)

    @property
    def guessing(self) -> bool:
        """Whether a forward was started ahead and its plan has not come yet."""
        return self._ahead.guessing

    @property
    def verifying(self) -> bool:
        """Whether what was started ahead verifies the drafts of the chains that were started last."""
        return self._ahead.verifying

    @property
    def samples(self) -> SampleInputs:
        """Inputs and results of sampling."""
        return self._samples

    @property
    def step_rows(self) -> int:
        """Rows that a step of decoding has at most: with routed experts as many as the backend's kernels of few rows
        take."""
        few = getattr(self.backend, "few_rows", MAX_STEP_ROWS)
        return int(few) if expert_layers(self.model) else MAX_STEP_ROWS

    @property
    def step_inputs(self) -> StepBuffers:
        """Inputs of the step form."""
        return self._buffers.step

    def compute(self, plan: StepPlan, output: StepOutput) -> None:
        """Decoding rows and prompt tails. Where one is at fault, each sequence is computed again by itself."""
        try:
            self.write_rows(plan).run()
        except FaultError as fault:
            self._alone(plan, fault, output)
            return
        if self._pooling:
            self._pool_tails(plan)
        decode, sampled = plan.decode, [t for t in plan.tails if t.sampled]
        self.commit_one(decode.sequences)
        self.commit({t.sequence: len(t.token_ids) for t in plan.tails})
        self.trace(len(decode.sequences) + sum(len(t.token_ids) for t in plan.tails), "step")
        if self.following is not None:
            for tail in plan.tails:
                self.following.tail_done(tail)
        sequences = np.append(decode.sequences, np.array([t.sequence for t in sampled], np.int32))
        positions = np.append(decode.positions, np.array([t.end - 1 for t in sampled], np.int32))
        if not len(sequences):
            return
        self.prepare(sequences, positions)
        tokens = self._sample(sequences, positions, output)
        output.token_ids = np.append(output.token_ids, tokens[: len(decode)])
        for tail, token in zip(sampled, tokens[len(decode) :].tolist(), strict=True):
            output.prompt_token_ids[tail.request_id] = token
        self._tell_following(plan, sampled, tokens)

    def _tell_following(self, plan: StepPlan, sampled: list[ScheduledRows], tokens: Ints) -> None:
        if self.following is None:
            return
        d, count = plan.decode, len(plan.decode)
        if count:
            self.following.decoded(d.sequences, d.positions, d.token_ids, tokens[:count])
        for tail, token in zip(sampled, tokens[count:].tolist(), strict=True):
            self.following.sampled(tail.sequence, token)

    def write_rows(self, plan: StepPlan) -> Replay:
        """Step inputs of the plan's rows; the replay that computes them."""
        return self.programs.step_of[self._rows.plan(plan)].replay

    def _pool_tails(self, plan: StepPlan) -> None:
        """Features of prompt tails, before anything else runs; the wanted rows' logits are not touched."""
        first, count = len(plan.decode), len(plan.decode) + sum(len(t.token_ids) for t in plan.tails)
        wanted = self._rows.num_wanted
        for tail in plan.tails:
            if tail.sequence in self._pooling:
                self._pool(self.programs.of("step", count), tail, first)
            first += len(tail.token_ids)
        self._rows.num_wanted = wanted

    def _pool(self, lowered: Lowered, rows: ScheduledRows, first: int) -> None:
        """Hands over the features of a prompt's rows, which begin at row `first` of what `lowered` has run."""
        for at in range(0, len(rows.token_ids), MAX_STEP_ROWS):
            count = min(MAX_STEP_ROWS, len(rows.token_ids) - at)
            self.want(np.arange(first + at, first + at + count))
            features = lowered.run_features()[:count]
            self._pooling[rows.sequence].add(rows.position + at, features)

    def _alone(self, plan: StepPlan, fault: FaultError, output: StepOutput) -> None:
        """Each sequence of a faulty step in a step of its own, so that only those at fault end. What was committed
        before the step became state in it."""
        decode, tails = plan.decode, plan.tails
        self.commit(dict.fromkeys([*decode.sequences.tolist(), *(t.sequence for t in tails)], 0))
        parts = [StepPlan(decode.only(i)) for i in range(len(decode))] + [StepPlan(tails=(t,)) for t in tails]
        if len(parts) > 1:
            for part in parts:
                self.compute(part, output)
            return
        for sequence in decode.sequences.tolist():
            output.faults[sequence] = fault
            output.token_ids = np.append(output.token_ids, np.int32(0))  # so that the order is kept
        for tail in tails:
            output.faults[tail.sequence] = fault

    def prepare(self, sequences: Ints, positions: Ints) -> None:
        """What sampling needs besides logits and masks."""
        self._samples.write(sequences, positions)
        self._step += 1
        self._step_number[0] = self._step

    def _sample(self, sequences: Ints, positions: Ints, output: StepOutput) -> Ints:
        """Tokens of the wanted rows; those of rows at fault are replaced by 0, and their faults told."""
        if self._samples.masked:
            output.faults.update(self._samples.fill_masks(sequences))
        try:
            self.programs.sampler.run()
            tokens = self.published()
        except FaultError as fault:
            tokens = self._without_faults(sequences, fault, output)
        finally:
            self._samples.counted()
        return self._sampled(sequences, positions, tokens, output)

    def _sampled(self, sequences: Ints, positions: Ints, tokens: Ints, output: StepOutput) -> Ints:
        """Tokens that became output."""
        self._samples.commit(sequences, tokens)
        self.tell(sequences, positions, tokens, None, output)
        return tokens

    def tell(
        self, sequences: Ints, positions: Ints, tokens: Ints, rows: NDArray[Any] | None, output: StepOutput
    ) -> None:
        """Hands on the logits that tokens were sampled from, of these rows (None: the first ones), where wanted."""
        if self.watch is None and not self._samples.num_top:
            return
        logits = self._logits[: len(sequences)] if rows is None else np.array(self._logits)[rows]
        if self.watch is not None:
            self.watch(sequences, positions, logits)
        if self._samples.num_top:
            self._log(sequences, tokens, logits, output)

    def _without_faults(self, sequences: Ints, fault: FaultError, output: StepOutput) -> Ints:
        tokens = self.published()
        at_fault = tokens < 0
        if not at_fault.any():
            raise fault
        output.faults.update(dict.fromkeys(sequences[at_fault].tolist(), fault))
        return np.maximum(tokens, 0)

    def _log(self, sequences: Ints, tokens: Ints, logits: NDArray[Any], output: StepOutput) -> None:
        for row, (sequence, token) in enumerate(zip(sequences.tolist(), tokens.tolist(), strict=True)):
            count = self._samples.num_top.get(sequence)
            if count is not None:
                found = log_probabilities(logits[row], token, count)
                output.logprobs.setdefault(sequence, []).append(found)

    def write(self, form: Form, rows: ScheduledRows) -> None:
        """Step inputs of one sequence's rows, whose pages it holds."""
        if form == "step":
            self._ahead.drop()
        self._rows.one(form, rows)

    def want(self, rows: NDArray[Any]) -> None:
        """Rows whose logits the head makes."""
        self._rows.want(rows)

    def trace(self, rows: int, form: Form) -> None:
        """Writes down what the routers chose for the rows just computed."""
        if self._tracer is not None:
            self._tracer.take(rows, form)

    def commit(self, counts: dict[int, int]) -> None:
        """Of the last step's rows of each sequence, how many became state."""
        self.keeper.commit(counts)

    @property
    def keeps_logits(self) -> bool:
        """Whether somebody reads a step's logits or routes after its tokens."""
        return self.watch is not None or self._tracer is not None or bool(self._samples.num_top)

    def logits(self, count: int) -> NDArray[Any]:
        """A copy of the logits of the wanted rows, float32 [count, vocab_size]."""
        return np.array(self._logits[:count])

    @property
    def weight_bytes_per_token(self) -> int:
        """Weight bytes one decode row reads: every weight once, but of tables only what it uses."""
        return sum(op.row_weight_bytes() for op in self.programs.of("step", 1).program.ops)
