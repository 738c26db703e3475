"""Fills the sample program's inputs: one parameter record a sequence, penalty counts, logit biases, token masks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.backends import Backend
from strata.engine.plan import Ints, Logprobs, StartedSequence
from strata.engine.request import SamplingParams, TokenMask
from strata.errors import FaultError, StrataError, UsageError
from strata.ops import (
    MAX_STEP_ROWS,
    CountBuffers,
    SampleBuffers,
    StepBuffers,
    count_output,
    count_prompt,
    pack_bias,
    sample_params,
)
from strata.ops.sample_params import SAMPLE_PARAMS

MAX_BIASES = 1024  # a sequence
MAX_TOP_LOGPROBS = 128


class SampleInputs:
    """A sequence starts, is written for each of its sampled rows, and commits the tokens that became output."""

    def __init__(self, steps: StepBuffers, max_num_seqs: int, vocab: int):
        self._vocab = vocab
        self.buffers = SampleBuffers.create(
            steps.num_logit_rows,
            steps.logit_rows.shape[0],
            vocab,
            slots=max_num_seqs,
            masks=max_num_seqs,
            biases=max_num_seqs * MAX_BIASES,
        )
        self._records = np.zeros((max_num_seqs, self.buffers.params.shape[1]), np.uint8)
        self._written: Ints | None = None  # sequences whose records stand in `params`
        self.counting = CountBuffers.create(MAX_STEP_ROWS)
        self._counted: set[int] = set()
        self._host_counts = True
        self._fresh: list[tuple[int, int]] = []  # (sequence, token) that the next sampling is to count
        self._mask_of: dict[int, TokenMask] = {}
        self.num_top: dict[
            int, int
        ] = {}  # of sequences whose log-probabilities are kept: likeliest tokens wanted

    def bind(self, backend: Backend) -> None:
        """Takes the arrays behind the buffers."""
        b = self.buffers
        self._positions, self._params = backend.array(b.positions), backend.array(b.params)
        self._counts, self._masks = backend.array(b.counts), backend.array(b.masks)
        self._bias_ids, self._bias_values = backend.array(b.bias_ids), backend.array(b.bias_values)
        self._host_counts = isinstance(self._counts, np.ndarray)
        if not self._host_counts:
            self._num, self._slots = backend.array(self.counting.num), backend.array(self.counting.slots)
            self._tokens = backend.array(self.counting.tokens)

    def start(self, started: StartedSequence) -> None:
        """Sets a sequence up: its record, biases, mask, and counts when a penalty needs them."""
        sequence, sampling, self._written = started.sequence, started.sampling, None
        ids, values = pack_bias(sampling.logit_bias, self._vocab)
        begin = sequence * MAX_BIASES
        self._bias_ids[begin : begin + len(ids)] = ids
        self._bias_values[begin : begin + len(ids)] = values
        places = {"bias_begin": begin, "bias_count": len(ids)}
        self._counted.discard(sequence)
        if has_penalty(sampling):
            self._start_counts(started)
            places["count_slot"] = sequence
        self._mask_of.pop(sequence, None)
        if started.mask is not None:
            self._mask_of[sequence] = started.mask
            places["mask_id"] = sequence
        self.num_top.pop(sequence, None)
        if sampling.logprobs is not None:
            self.num_top[sequence] = sampling.logprobs
        self._records[sequence] = np.frombuffer(_record(sampling, **places).tobytes(), np.uint8)

    def _start_counts(self, started: StartedSequence) -> None:
        counts = np.zeros(self._vocab, np.int32)
        count_prompt(counts, started.prompt_token_ids)
        count_output(counts, started.output_token_ids)
        self._counts[started.sequence] = counts
        self._counted.add(started.sequence)
        self._fresh = [f for f in self._fresh if f[0] != started.sequence]

    def write(self, sequences: Ints, positions: Ints) -> None:
        """Records and positions of the step's sampled rows."""
        n = len(sequences)
        if sequences is not self._written:
            self._params[:n] = self._records[sequences]
            self._written = sequences
        self._positions[:n] = positions
        self.tell_counts()

    def tell_counts(self) -> None:
        """Writes which tokens the next sampling counts before it chooses."""
        if self._fresh:
            self._num[0] = len(self._fresh)
            self._slots[: len(self._fresh)], self._tokens[: len(self._fresh)] = zip(*self._fresh, strict=True)

    def counted(self) -> None:
        """A sampling was started with what `write` left."""
        if self._fresh:
            self._fresh, self._num[0] = [], 0

    def unmasked(self, sequences: Ints) -> NDArray[np.uint8]:
        """Records without masks, [n, bytes], for what is drafted: the mask of a later place is not known."""
        records = self._records[sequences]
        records.view(SAMPLE_PARAMS)["mask_id"] = -1
        return records

    @property
    def masked(self) -> bool:
        """Whether a sequence has a mask."""
        return bool(self._mask_of)

    def fill_masks(self, sequences: Ints) -> dict[int, StrataError]:
        """Masks of the step's sampled rows; returns those that failed."""
        failed: dict[int, StrataError] = {}
        for sequence in sequences.tolist():
            mask = self._mask_of.get(sequence)
            if mask is None:
                continue
            row = self._masks[sequence]
            try:
                mask.fill(row)
                if not row.any():
                    raise FaultError("the constraint on the answer leaves no token")
            except StrataError as error:
                failed[sequence] = error
                row[:] = -1
        return failed

    def depends_on_tokens(self, sequence: int) -> bool:
        """Whether what is sampled depends on the tokens before it beside the logits: penalties, a mask."""
        return sequence in self._counted or sequence in self._mask_of

    def take(self, sequence: int, token: int) -> None:
        """A token became output in the middle of a step; StrataError where its mask refuses it."""
        mask = self._mask_of.get(sequence)
        if mask is not None:
            mask.accept(token)
        if sequence not in self._counted:
            return
        if self._host_counts:
            self._counts[sequence, token] += 2
        else:
            self._fresh.append((sequence, token))

    def commit(self, sequences: Ints, token_ids: Ints) -> None:
        """Counts the tokens that became output: at once where the host can, else when sampling begins next."""
        if not self._counted:
            return
        pairs = zip(sequences.tolist(), token_ids.tolist(), strict=True)
        fresh = [pair for pair in pairs if pair[0] in self._counted]
        if not self._host_counts:
            self._fresh += fresh
            return
        for sequence, token in fresh:
            self._counts[sequence, token] += 2


def log_probabilities(logits: NDArray[Any], token_id: int, count: int) -> Logprobs:
    """Of a token and of the `count` likeliest, from logits float32 [vocab_size]: the model's own, before any sampling
    parameter."""
    z = logits.astype(np.float64)
    total = z.max() + np.log(np.exp(z - z.max()).sum())
    found = np.argpartition(-z, min(count, len(z) - 1))[:count]
    found = found[np.argsort(-z[found], kind="stable")]
    return Logprobs(float(z[token_id] - total), [(int(i), float(z[i] - total)) for i in found])


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
    if not 0 <= (sampling.logprobs or 0) <= MAX_TOP_LOGPROBS:
        raise UsageError(f"{sampling.logprobs} top log-probabilities; at most {MAX_TOP_LOGPROBS} are given")
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
