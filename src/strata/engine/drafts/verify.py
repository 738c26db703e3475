"""A step whose rows hold drafts: each row is sampled as it would be without drafts, and a draft is accepted exactly
when it is the token that was sampled from the row before.

Penalties and masks of a row depend on the tokens before it. Sequences that have either are therefore sampled wave by
wave: the next row counts once its draft was accepted and the inputs know of it.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from strata.engine.plan import DecodeRows, Ints, StartedSequence, StepOutput, StepPlan
from strata.errors import FaultError, StrataError

if TYPE_CHECKING:
    from strata.engine.drafts.chain import Run
    from strata.engine.drafts.following import Following
    from strata.engine.runner import Runner

NO_STOPS: frozenset[int] = frozenset()


class Verifier:
    """Of a runner."""

    def __init__(self, runner: "Runner", following: "Following | None"):
        self._runner, self._following = runner, following
        self._stops: dict[int, frozenset[int]] = {}

    def start(self, started: StartedSequence) -> None:
        """A request got a sequence."""
        sampling = started.sampling
        self._stops[started.sequence] = NO_STOPS if sampling.ignore_eos else sampling.stop_token_ids

    def run(self, plan: StepPlan, output: StepOutput) -> None:
        """The plan's decode rows, of which `counts` says whose they are."""
        runner, decode = self._runner, plan.decode
        first = decode.firsts
        own = decode.sequences[first]
        runner.prepare(decode.sequences, decode.positions)
        if runner.samples.masked:
            output.faults.update(runner.samples.fill_masks(own))
        try:
            runner.start_rows(plan)
            runner.programs.sampler.run()
            runner.samples.counted()
        except FaultError:
            runner.samples.counted()
            self._without_drafts(decode, output)
            return
        self._tokens = runner.published()
        runner.trace(len(decode), "step")
        kept = self._accept(decode, self._tokens, output)
        self._finish(decode, kept, output)

    def _sample_again(self, rows: NDArray[np.int64]) -> None:
        """Tokens of these rows with the inputs as they are now; -1 where a row has none."""
        runner = self._runner
        runner.samples.tell_counts()
        try:
            runner.programs.sampler.run()
        except FaultError:
            if not (runner.published() < 0).any():
                raise
        runner.samples.counted()
        self._tokens[rows] = runner.published()[rows]

    def _without_drafts(self, decode: DecodeRows, output: StepOutput) -> None:
        """The step again, one row a sequence: a draft may be what was at fault."""
        plain = decode.plain()
        self._runner.commit(dict.fromkeys(plain.sequences.tolist(), 0))
        self._runner.compute(StepPlan(plain), output)

    def _accept(self, decode: DecodeRows, tokens: Ints, output: StepOutput) -> list[int]:
        """Accepted drafts of each sequence."""
        assert decode.counts is not None
        kept = [0] * len(decode.counts)
        waves: list[int] = []
        for i, (row, count) in enumerate(zip(decode.firsts.tolist(), decode.counts.tolist(), strict=True)):
            sequence = int(decode.sequences[row])
            if count > 1 and self._runner.samples.depends_on_tokens(sequence):
                waves.append(i)
                continue
            while kept[i] + 1 < count and self._agrees(decode, row + kept[i], tokens, output):
                kept[i] += 1
        while waves:
            waves = self._wave(decode, waves, kept, output)
        return kept

    def _wave(self, decode: DecodeRows, waves: list[int], kept: list[int], output: StepOutput) -> list[int]:
        """Of sequences that go token by token, those whose next draft was accepted, their rows sampled anew."""
        assert decode.counts is not None
        samples, firsts, onward = self._runner.samples, decode.firsts, []
        for i in waves:
            row, sequence = int(firsts[i]) + kept[i], int(decode.sequences[firsts[i]])
            token = int(self._tokens[row])
            if kept[i] + 1 >= decode.counts[i] or not self._agrees(decode, row, self._tokens, output):
                continue
            try:
                samples.take(sequence, token)
            except StrataError:  # raised again where the token becomes output
                continue
            kept[i] += 1
            onward.append(i)
        if not onward:
            return []
        output.faults.update(samples.fill_masks(decode.sequences[firsts[onward]]))
        self._sample_again(firsts[onward] + np.array(kept)[onward])
        return [i for i in onward if int(decode.sequences[firsts[i]]) not in output.faults]

    def _agrees(self, decode: DecodeRows, row: int, tokens: Ints, output: StepOutput) -> bool:
        """Whether what was sampled from a row is the next row's token, and the text goes on after it."""
        token, sequence = int(tokens[row]), int(decode.sequences[row])
        if token < 0 or token != int(decode.token_ids[row + 1]):
            return False
        if self._stopped(sequence, token):
            output.cut[sequence] = True
            return False
        return sequence not in output.faults

    def _finish(self, decode: DecodeRows, kept: list[int], output: StepOutput) -> None:
        """Commits accepted rows; tells tokens, and what depends on them."""
        runner, first = self._runner, decode.firsts
        last = first + np.array(kept)
        own, accepted = decode.sequences[first], np.array(kept, np.int32) + 1
        tokens = self._tokens
        for i in np.flatnonzero(tokens[last] < 0).tolist():
            output.faults[int(own[i])] = FaultError("sampling: a row without a token")
        tokens = np.maximum(tokens, 0)
        rows = np.concatenate([np.arange(f, f + n) for f, n in zip(first, accepted, strict=True)])
        if self._following is not None:  # a new id's upload would wait for what is started after it
            self._following.saw(tokens[rows])
        run = self._chains(decode, first, kept, tokens, output)
        runner.commit(dict(zip(own.tolist(), accepted.tolist(), strict=True)))
        if run is not None and decode.follow and self._goes_on(own, tokens[last], output):
            runner.verify_ahead(own, decode.positions[last] + 1, tokens[last], run)
        output.token_ids, output.accepted = tokens[rows], accepted
        runner.samples.commit(own, tokens[last])
        runner.tell(decode.sequences[rows], decode.positions[rows], tokens[rows], rows, output)

    def _goes_on(self, sequences: Ints, token_ids: Ints, output: StepOutput) -> bool:
        """Whether the next step has the same sequences, and nothing beside them."""
        if output.faults or output.plan.reading or output.plan.prompt:
            return False
        return not any(map(self._stopped, sequences.tolist(), token_ids.tolist()))

    def _stopped(self, sequence: int, token: int) -> bool:
        """Whether a text ends with the token."""
        return token in self._stops.get(sequence, NO_STOPS)

    def _chains(
        self, decode: DecodeRows, first: NDArray[np.int64], kept: list[int], tokens: Ints, output: StepOutput
    ) -> "Run | None":
        """Starts the chains that the plan asks for."""
        following, own = self._following, decode.sequences[first]
        if following is None:
            return None
        for row, right, sequence in zip(first.tolist(), kept, own.tolist(), strict=True):
            text = np.append(decode.token_ids[row : row + right + 1], tokens[row + right])
            following.followed.accepted(sequence, int(decode.positions[row]), text)
        lengths = np.zeros(len(own), np.int32) if decode.chains is None else decode.chains.copy()
        last = tokens[first + np.array(kept)]
        for i, (sequence, token) in enumerate(zip(own.tolist(), last.tolist(), strict=True)):
            if sequence in output.faults or self._stopped(sequence, token):
                lengths[i] = 0
        return following.draft(own, lengths, output)
