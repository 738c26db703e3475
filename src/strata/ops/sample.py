"""sample: one token a row from logits. A result depends on (logits, parameters, seed, position) alone.

In this order, all in float32 (docs/sampling.md says the same for users):

1. bias added; repetition penalty on tokens of prompt or output (z > 0 ? z / r : z * r); then, for tokens of
   the output, minus frequency * count and minus presence;
2. masked tokens leave; best = largest z. `logprob` is (z - best) - log(sum exp(z - best)) over what is left,
   the sum that of the vocabulary: of pieces of 2,048 ids, each in 32 lanes (id mod 32) and the tree, in lanes
   (piece mod 32) and the tree;
3. temperature 0: the lowest id with z = best. Otherwise d = (best - z) / temperature, p = exp(-d): measured
   from the best, so that no temperature overflows;
4. top_k, top_p, min_p, each on what the one before left, in the order (d ascending, id ascending). top_p
   keeps the shortest prefix whose running float32 sum reaches top_p * total; total is where the running sum
   ends after a top_k, and the sum over the vocabulary without one. min_p keeps p >= min_p (best: 1);
5. the largest gumbel - d wins, the lower id on ties (Gumbel-max: Maddison, Tarlow and Minka, "A* sampling",
   2014), with gumbel = -log(-log(u)), u from Philox with key seed at counter (position, id).

Faults leave id -1: a non-finite logit, no token left by the mask, a bias on a token outside the vocabulary.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from strata.errors import FaultError
from strata.ops.arithmetic import exp32, lane_sum, log32
from strata.ops.buffers import Buffer
from strata.ops.builder import Builder
from strata.ops.op import Arrays, Op
from strata.ops.sample_params import SAMPLE_PARAMS
from strata.ops.shapes import expect_width

Float32 = NDArray[np.float32]

SUM_PIECE = 2048  # ids: kSumPiece of native/include/strata/sample.h
FAULT_NON_FINITE, FAULT_RANGE, FAULT_NO_TOKEN = 1, 2, 4  # bits of native/cpu/op.h
_FAULT_TEXT = {
    FAULT_NON_FINITE: "a logit is not finite",
    FAULT_RANGE: "a logit bias names a token outside the vocabulary",
    FAULT_NO_TOKEN: "the token mask leaves no token",
}


@dataclass(frozen=True, eq=False)
class SampleBuffers:
    """What sampling reads beside logits, and its results; rows are the step's logit rows."""

    positions: Buffer  # i32 [rows], position of the token whose logits these are
    params: Buffer  # u8 [rows, 56], SAMPLE_PARAMS
    counts: Buffer  # i32 [slots, vocab], bit 0: in the prompt, the rest: times in the output
    masks: Buffer  # i32 [masks, ceil(vocab / 32)], bit set: allowed
    bias_ids: Buffer  # i32 [biases], distinct within a row's part
    bias_values: Buffer  # f32 [biases]
    out_ids: Buffer  # i32 [rows]
    out_logprob: Buffer  # f32 [rows]

    @classmethod
    def create(
        cls, live: Buffer, rows: int, vocab: int, *, slots: int, masks: int, biases: int
    ) -> "SampleBuffers":
        """Buffers for up to `rows` rows (`live` says how many) and `slots` requests with penalties."""
        size = SAMPLE_PARAMS.itemsize
        return cls(
            positions=Buffer("sample_positions", (rows,), "i32", "input", live=live),
            params=Buffer("sample_params", (rows, size), "u8", "input", live=live),
            counts=Buffer("sample_counts", (slots, vocab), "i32", "state"),
            masks=Buffer("sample_masks", (masks, -(-vocab // 32)), "i32", "input"),
            bias_ids=Buffer("sample_bias_ids", (biases,), "i32", "input"),
            bias_values=Buffer("sample_bias_values", (biases,), "f32", "input"),
            out_ids=Buffer("sampled_ids", (rows,), "i32", "output", live=live),
            out_logprob=Buffer("sampled_logprob", (rows,), "f32", "output", live=live),
        )


@dataclass(frozen=True, eq=False)
class Sample(Op):
    """out_ids[r], out_logprob[r] from logits[r]."""

    kind: ClassVar[str] = "sample"
    writes: ClassVar[tuple[str, ...]] = ("out_ids", "out_logprob")
    logits: Buffer  # [rows, vocab]
    positions: Buffer
    params: Buffer
    counts: Buffer
    masks: Buffer
    bias_ids: Buffer
    bias_values: Buffer
    out_ids: Buffer
    out_logprob: Buffer

    def run_float(self, at: Arrays) -> None:
        params = np.ascontiguousarray(at.live(self.params)).view(SAMPLE_PARAMS)[:, 0]
        faults = 0
        for r, (logits, position, p) in enumerate(
            zip(at.live(self.logits), at.live(self.positions), params, strict=True)
        ):
            row = SampleRow.of(p, at[self.counts], at[self.masks], at[self.bias_ids], at[self.bias_values])
            token_id, logprob, fault = sample_row(logits, row, int(position) + 1)
            at[self.out_ids][r], at[self.out_logprob][r] = token_id, logprob
            faults |= fault
        if faults:
            raise FaultError(
                "sampling: " + "; ".join(text for bit, text in _FAULT_TEXT.items() if faults & bit)
            )


def sample(b: Builder, logits: Buffer, buffers: SampleBuffers) -> tuple[Buffer, Buffer]:
    """Sampled ids i32 [rows] and their log-probabilities f32 [rows] from logits [rows, vocab]."""
    expect_width(buffers.counts, logits.shape[-1])
    fields = ("positions", "params", "counts", "masks", "bias_ids", "bias_values", "out_ids", "out_logprob")
    b.emit(Sample(logits, *(getattr(buffers, name) for name in fields)))
    return buffers.out_ids, buffers.out_logprob


@dataclass(frozen=True)
class SampleRow:
    """One row's parameters with the rows of the shared planes that they name."""

    p: Any  # a SAMPLE_PARAMS record
    counts: NDArray[np.int32] | None
    mask: NDArray[np.generic] | None
    bias_ids: NDArray[np.int32]
    bias_values: Float32

    @classmethod
    def of(
        cls,
        p: Any,
        counts: NDArray[np.int32],
        masks: NDArray[np.generic],
        bias_ids: NDArray[np.int32],
        bias_values: Float32,
    ) -> "SampleRow":
        """Picks the row's parts of the planes."""
        biased = slice(p["bias_begin"], p["bias_begin"] + p["bias_count"])
        return cls(
            p,
            counts[p["count_slot"]] if p["count_slot"] >= 0 else None,
            masks[p["mask_id"]] if p["mask_id"] >= 0 else None,
            bias_ids[biased],
            bias_values[biased],
        )


def sample_row(logits: Float32, row: SampleRow, position: int) -> tuple[int, np.float32, int]:
    """(token id, logprob, fault bits) of logits [vocab]; `position` is that of the token being sampled."""
    nothing = np.float32(0)
    if len(row.bias_ids) and not 0 <= row.bias_ids.min() <= row.bias_ids.max() < len(logits):
        return -1, nothing, FAULT_RANGE
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        z = _penalised(logits, row)
        if not np.isfinite(z).all():
            return -1, nothing, FAULT_NON_FINITE
        if row.mask is not None:
            bits = np.unpackbits(row.mask.view(np.uint8), bitorder="little")[: len(z)]
            z = np.where(bits.astype(bool), z, np.float32(-np.inf))
        best = z.max()
        if best == -np.inf:
            return -1, nothing, FAULT_NO_TOKEN
        distance = best - z
        log_total = log32(vocabulary_sum(exp32(-distance)))
        if row.p["temperature"] == 0:
            token_id = int(z.argmax())
        else:
            d = distance / row.p["temperature"]
            token_id = _race(d, _keep(d, row.p), int(row.p["seed"]), position)
        return token_id, (z[token_id] - best) - log_total, 0


def vocabulary_sum(x: Float32) -> Float32:
    """Sum of x [vocab]: lane sums of pieces of SUM_PIECE ids, and the lane sum of those."""
    pieces = np.pad(x, (0, -len(x) % SUM_PIECE)).reshape(-1, SUM_PIECE)
    return lane_sum(lane_sum(pieces))


def _penalised(logits: Float32, row: SampleRow) -> Float32:
    z, p = logits.copy(), row.p
    z[row.bias_ids] += row.bias_values
    if row.counts is None:
        return z
    output = row.counts >> 1
    repetition = p["repetition_penalty"]
    z = np.where(row.counts != 0, np.where(z > 0, z / repetition, z * repetition), z)
    z = z - p["frequency_penalty"] * output.astype(np.float32)
    return np.asarray(z - np.where(output > 0, p["presence_penalty"], np.float32(0)))


def _keep(d: Float32, p: Any) -> NDArray[np.int64]:
    """Ids that top_k, top_p and min_p leave, best first."""
    kept: NDArray[np.int64] = np.argsort(d, kind="stable")
    if p["top_k"] > 0:
        kept = kept[: p["top_k"]]
    if p["top_p"] < 1:
        running = np.add.accumulate(exp32(-d[kept]))
        total = running[-1] if p["top_k"] > 0 else vocabulary_sum(exp32(-d))
        reached = running >= p["top_p"] * total
        if reached.any():
            kept = kept[: reached.argmax() + 1]
    return np.asarray(kept[exp32(-d[kept]) >= p["min_p"]])


def _race(d: Float32, kept: NDArray[np.int64], seed: int, position: int) -> int:
    score = gumbel(seed, position, kept) - d[kept]
    return int(kept[score == score.max()].min())


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> Float32:
    """Standard Gumbel numbers of token ids at a position (sample.h `gumbel32`)."""
    words = philox(seed, position, ids // 4)[np.arange(len(ids)), ids % 4]
    u = ((words >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return -log32(-log32(u))


def philox(key: int, counter_lo: int, counter_hi: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Philox 4x32-10 (contract.h `philox`) at many upper counters [n]: uint32 [n, 4]."""
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    high_counter = counter_hi.astype(np.uint64)
    c = [np.full(len(counter_hi), counter_lo & 0xFFFFFFFF, np.uint64)]
    c += [np.full(len(counter_hi), counter_lo >> 32, np.uint64), high_counter & low, high_counter >> half]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> half) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> half) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=-1).astype(np.uint32)
