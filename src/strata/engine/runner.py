"""The runner: writes a step's inputs, replays its programs, and says what was sampled. Everything is fixed at load."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend
from strata.engine.keeper import Keeper
from strata.engine.plan import Ints, Logprobs, PromptCursor, ScheduledRows, StepOutput, StepPlan
from strata.engine.programs import Inputs, Limits, Programs
from strata.engine.sample_inputs import log_probabilities
from strata.errors import FaultError, StrataError
from strata.memory import PageTable, StatePool
from strata.models import Model
from strata.ops import Form

# Is told (sequences, positions, logits [n, vocab_size]) of every row that is sampled.
Watch = Callable[[Ints, Ints, NDArray[Any]], None]


class Runner:
    """A step writes inputs and replays two programs; a chunk runs in parts, with steps between them."""

    def __init__(self, model: Model, backend: Backend, state: StatePool, limits: Limits):
        self.limits, self.backend, self.model, self.state = limits, backend, model, state
        self.pages = PageTable(state.num_pages)
        self._buffers = Inputs.create(limits)
        self.programs = Programs(model, backend, state, limits, self._buffers)
        self.keeper = Keeper(backend, self._buffers.step, state, self.pages)
        self.programs.lower(backend, self.keeper)
        self._at = {b: backend.array(b) for b in self._buffers.all()}
        self._logits = backend.array(self.programs.logits)
        self._samples = self.programs.samples
        self._samples.bind(backend)
        ring = self.programs.ring
        self._step_number, self._results = backend.array(ring.step), backend.array(ring.ring)
        self._step = 0
        self.watch: Watch | None = None

    def run(self, plan: StepPlan) -> StepOutput:
        """The cursor's parts while its budget lasts, then the plan's rows; samples where it asks for it."""
        for started in plan.started:
            self._samples.start(started)
        output = _Output(plan)
        begin = perf_counter()
        if plan.prompt is not None:
            self._read(plan.prompt, output)
        middle = perf_counter()
        if len(plan.decode) or plan.tails:
            self._compute(plan, output)
        return output.finish((middle - begin) * 1e3, (perf_counter() - middle) * 1e3)

    def _read(self, cursor: PromptCursor, output: "_Output") -> None:
        rows, chunk = cursor.rows, self.programs.of("chunk", len(cursor.rows.token_ids))
        if cursor.part == 0:
            self.write("chunk", rows)
            self._write_taps(cursor.taps)
        part, deadline = cursor.part, perf_counter() + cursor.budget_ms * 1e-3
        try:
            while part < chunk.head and (part == cursor.part or perf_counter() < deadline):
                chunk.run_part(part)
                part += 1
            output.prompt_part = part % chunk.head
            if part == chunk.head:
                self.commit({rows.sequence: 0})
                if rows.sampled:
                    self._head(chunk.head, rows, output)
        except FaultError as fault:
            output.faults[rows.sequence], output.prompt_part = fault, 0

    def _head(self, part: int, rows: ScheduledRows, output: "_Output") -> None:
        """Logits and the token after a prompt that ends with a chunk."""
        self.want(np.array([len(rows.token_ids) - 1]))
        self.programs.of("chunk", 64).run_part(part)
        sequences, positions = np.array([[rows.sequence], [rows.end - 1]], np.int32)
        output.prompt_token_ids[rows.request_id] = self._sample(sequences, positions, output)[0]

    def _compute(self, plan: StepPlan, output: "_Output") -> None:
        """The rows of the step form. Where one is at fault, each sequence is computed again by itself."""
        try:
            self._forward(plan)
        except FaultError as fault:
            self._alone(plan, fault, output)
            return
        sampled = [t for t in plan.tails if t.sampled]
        sequences, positions = plan.decode.sequences, plan.decode.positions
        if sampled:
            sequences = np.append(sequences, np.array([t.sequence for t in sampled], np.int32))
            positions = np.append(positions, np.array([t.end - 1 for t in sampled], np.int32))
        if not len(sequences):
            return
        tokens = self._sample(sequences, positions, output)
        count = len(plan.decode)
        output.token_ids += tokens[:count]
        output.prompt_token_ids |= zip((t.request_id for t in sampled), tokens[count:], strict=True)

    def _forward(self, plan: StepPlan) -> None:
        s, at, decode = self._buffers.step, self._at, plan.decode
        count = len(decode)
        at[s.tokens][:count] = decode.token_ids
        at[s.positions][:count] = decode.positions
        at[s.sequences][:count] = decode.sequences
        at[s.logit_rows][:count] = np.arange(count)
        wanted = count
        for tail in plan.tails:
            count = self._place("step", tail, count)
            if tail.sampled:
                at[s.logit_rows][wanted] = count - 1
                wanted += 1
        at[s.rope_positions][:count] = at[s.positions][:count, None]
        at[s.num_rows][0], at[s.num_logit_rows][0] = count, wanted
        self.programs.step_of[count].replay.run()
        at[s.commits][decode.sequences] = 1
        for tail in plan.tails:
            at[s.commits][tail.sequence] = len(tail.token_ids)

    def _alone(self, plan: StepPlan, fault: FaultError, output: "_Output") -> None:
        """Each sequence of a faulty step in a step of its own, so that only those at fault end. What was committed
        before the step became state in it."""
        decode = plan.decode
        parts = [StepPlan(decode.only(i)) for i in range(len(decode))] + [
            StepPlan(tails=(t,)) for t in plan.tails
        ]
        for part in parts:
            for sequence in (*part.decode.sequences.tolist(), *(t.sequence for t in part.tails)):
                self.commit({sequence: 0})
        if len(parts) == 1:
            output.fail(parts[0], fault)
            return
        for part in parts:
            self._compute(part, output)

    def _sample(self, sequences: Ints, positions: Ints, output: "_Output") -> list[int]:
        """Tokens of the wanted rows; those of rows at fault are replaced by 0, and their faults told."""
        output.faults |= self._samples.write(sequences, positions)
        self._step += 1
        self._step_number[0] = self._step
        try:
            self.programs.sampler.run()
            tokens, _ = self._ring(self._step)
        except FaultError as fault:
            tokens, _ = self._ring(self._step)
            if -1 not in tokens:
                raise
            output.faults |= {int(s): fault for s, t in zip(sequences, tokens, strict=True) if t == -1}
            tokens = [max(token, 0) for token in tokens]
        self._samples.commit(sequences, tokens)
        if self.watch is not None:
            self.watch(sequences, positions, self._logits[: len(sequences)])
        if self._samples.num_top:
            self._log(sequences, tokens, output)
        return tokens

    def _log(self, sequences: Ints, tokens: list[int], output: "_Output") -> None:
        for row, (sequence, token) in enumerate(zip(sequences.tolist(), tokens, strict=True)):
            count = self._samples.num_top.get(sequence)
            if count is not None:
                output.logprobs[sequence] = log_probabilities(self._logits[row], token, count)

    def _ring(self, step: int) -> tuple[list[int], list[float]]:
        return self.programs.ring.read(self._results, step)

    def write(self, form: Form, rows: ScheduledRows) -> None:
        """Step inputs of one sequence's rows, whose pages it holds."""
        s, at = self._buffers.of(form), self._at
        count = self._place(form, rows, 0)
        at[s.rope_positions][:count] = at[s.positions][:count, None]
        at[s.num_rows][0] = count

    def _place(self, form: Form, rows: ScheduledRows, begin: int) -> int:
        s, at = self._buffers.of(form), self._at
        end = begin + len(rows.token_ids)
        at[s.tokens][begin:end] = rows.token_ids
        at[s.positions][begin:end] = np.arange(rows.position, rows.end)
        at[s.sequences][begin:end] = rows.sequence
        return end

    def _write_taps(self, taps: tuple[tuple[int, int], ...]) -> None:
        s, at = self._buffers.chunk, self._at
        at[s.tap_positions][:] = 0
        for i, (position, slot) in enumerate(taps):
            at[s.tap_positions][i], at[s.tap_slots][i] = position, slot

    def want(self, rows: NDArray[Any]) -> None:
        """Rows whose logits the head makes."""
        s = self._buffers.step
        self._at[s.num_logit_rows][0] = len(rows)
        self._at[s.logit_rows][: len(rows)] = rows

    def commit(self, counts: dict[int, int]) -> None:
        """Of the last step's rows of each sequence, how many became state."""
        self.keeper.commit(counts)

    def logits(self, count: int) -> NDArray[Any]:
        """A copy of the logits of the wanted rows, float32 [count, vocab_size]."""
        return np.array(self._logits[:count])

    @property
    def weight_bytes_per_token(self) -> int:
        """Weight bytes one decode row reads: every weight once, but of tables only what it uses."""
        return sum(op.row_weight_bytes() for op in self.programs.of("step", 1).program.ops)


class _Output:
    """A StepOutput while it comes about."""

    def __init__(self, plan: StepPlan):
        self._plan = plan
        self.token_ids: list[int] = []
        self.prompt_token_ids: dict[int, int] = {}
        self.prompt_part = 0
        self.logprobs: dict[int, Logprobs] = {}
        self.faults: dict[int, StrataError] = {}

    def fail(self, part: StepPlan, fault: FaultError) -> None:
        """A sequence computed by itself is at fault; a decoding one gets a token, so that the order is kept."""
        for sequence in part.decode.sequences.tolist():
            self.faults[sequence] = fault
            self.token_ids.append(0)
        for tail in part.tails:
            self.faults[tail.sequence] = fault
            if tail.sampled:
                self.prompt_token_ids[tail.request_id] = 0

    def finish(self, prompt_ms: float, decode_ms: float) -> StepOutput:
        """The record."""
        return StepOutput(
            self._plan,
            self.token_ids,
            self.prompt_token_ids,
            self.prompt_part,
            self.logprobs,
            self.faults,
            prompt_ms,
            decode_ms,
        )
