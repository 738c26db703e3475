"""Fills the sample program's inputs: one parameter record a sequence, its penalty counts and logit biases."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend
from strata.engine.plan import ScheduledRows, StartedSequence
from strata.engine.request import SamplingParams
from strata.errors import UsageError
from strata.ops import SampleBuffers, StepBuffers, count_prompt, pack_bias, sample_params

MAX_BIASES = 1024  # a sequence


class SampleInputs:
    """A sequence starts, is written for each of its sampled rows, and commits the tokens that became output."""

    def __init__(self, steps: StepBuffers, max_num_seqs: int, vocab: int):
        self._vocab = vocab
        self.buffers = SampleBuffers.create(
            steps.num_logit_rows,
            steps.logit_rows.shape[0],
            vocab,
            slots=max_num_seqs,
            masks=1,
            biases=max_num_seqs * MAX_BIASES,
        )
        self._records: list[NDArray[Any]] = [sample_params() for _ in range(max_num_seqs)]

    def bind(self, backend: Backend) -> None:
        """Takes the arrays behind the buffers."""
        b = self.buffers
        self._positions, self._params = backend.array(b.positions), backend.array(b.params)
        self._counts = backend.array(b.counts)
        self._bias_ids, self._bias_values = backend.array(b.bias_ids), backend.array(b.bias_values)

    def start(self, started: StartedSequence) -> None:
        """Sets a sequence up: its record, biases, and counts when a penalty needs them."""
        sequence, sampling = started.sequence, started.sampling
        ids, values = pack_bias(sampling.logit_bias, self._vocab)
        begin = sequence * MAX_BIASES
        self._bias_ids[begin : begin + len(ids)] = ids
        self._bias_values[begin : begin + len(ids)] = values
        counted = has_penalty(sampling)
        if counted:
            counts = np.zeros(self._vocab, np.int32)
            count_prompt(counts, started.prompt_token_ids)
            self._counts[sequence] = counts
        self._records[sequence] = _record(
            sampling, count_slot=sequence if counted else -1, bias_begin=begin, bias_count=len(ids)
        )

    def write(self, rows: Sequence[ScheduledRows]) -> None:
        """Records and positions of the step's sampled rows, in order."""
        for i, scheduled in enumerate(rows):
            self._params[i] = np.frombuffer(self._records[scheduled.sequence].tobytes(), np.uint8)
            self._positions[i] = scheduled.end - 1

    def commit(self, rows: Sequence[ScheduledRows], token_ids: Sequence[int]) -> None:
        """Counts the tokens that became output."""
        for scheduled, token in zip(rows, token_ids, strict=True):
            if self._records[scheduled.sequence]["count_slot"] >= 0:
                self._counts[scheduled.sequence, token] += 2


def has_penalty(sampling: SamplingParams) -> bool:
    """Whether tokens that occurred change the logits."""
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (
        1.0,
        0.0,
        0.0,
    )


def check_sampling(sampling: SamplingParams, vocab: int) -> None:
    """UsageError for what sampling could not do; called before a request is queued, so that no step can fail on it."""
    if len(sampling.logit_bias) > MAX_BIASES:
        raise UsageError(f"{len(sampling.logit_bias)} logit biases; at most {MAX_BIASES} fit")
    pack_bias(sampling.logit_bias, vocab)
    _record(sampling)


def _record(sampling: SamplingParams, **places: int) -> NDArray[Any]:
    return sample_params(
        seed=sampling.seed,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        **places,
    )
