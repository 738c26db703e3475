"""Lowering rules of sampling and of its results."""

from strata.backends.cuda.driver import Launch
from strata.backends.cuda.lower import Context, ints, launch, lower, pointer
from strata.backends.cuda.lower_dense import THREADS, rows_of
from strata.ops.count_tokens import CountTokens
from strata.ops.publish import Publish
from strata.ops.sample import SUM_PIECE, Sample

_STATE_WORDS = 4  # of RowState


@lower.register
def _(op: Sample, at: Context) -> list[Launch]:
    rows, vocab = rows_of(op.logits, at), op.logits.shape[-1]
    inputs = (op.logits, op.positions, op.params, op.counts, op.masks, op.bias_ids, op.bias_values)
    pieces = -(-vocab // SUM_PIECE)
    planes = [pointer(at.scratch(4 * rows * n)) for n in (vocab, pieces, pieces)]
    states, faults = pointer(at.counters(_STATE_WORDS * rows)), pointer(at.faults)
    args = [at.live(op.out_ids), *at.at(*inputs), *planes, states, faults]
    args += [*at.at(op.out_ids, op.out_logprob), *ints(vocab)]
    grid = pieces, rows
    return [
        launch("sample.cu", "sample_scores", grid, THREADS, args),
        launch("sample.cu", "sample_distances", grid, THREADS, args),
        launch("sample.cu", "sample_choose", rows, 1024, args),
    ]


@lower.register
def _(op: CountTokens, at: Context) -> list[Launch]:
    rows, (slots, vocab) = op.tokens.shape[0], op.counts.shape
    args = [at.live(op.tokens), *at.at(op.slots, op.tokens, op.counts), pointer(at.faults)]
    return [
        launch("count_tokens.cu", "count_tokens", 1, -(-rows // 32) * 32, [*args, *ints(rows, slots, vocab)])
    ]


@lower.register
def _(op: Publish, at: Context) -> list[Launch]:
    args = [at.live(op.ids), *at.at(op.step, op.ids, op.logprobs, op.ring), pointer(at.faults)]
    return [launch("publish.cu", "publish", 1, 64, [*args, *ints(*op.ring.shape)])]
