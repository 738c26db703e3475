"""What stands around a prompt chunk's products of experts in tiers: copies, the CPU's part, and its rows."""

from collections.abc import Mapping
from functools import partial

from strata.backends.cuda.chunk_share import ChunkShare
from strata.backends.cuda.driver import Launch
from strata.backends.cuda.fuse import Lowering
from strata.backends.cuda.lower import Context
from strata.backends.cuda.prompt_experts import PromptExperts
from strata.backends.cuda.tier import ExpertTier
from strata.ops.experts import ExpertDown, ExpertGateUp
from strata.ops.program import Program


def around_experts(
    program: Program,
    tier: ExpertTier | None,
    experts: Mapping[int, int],
    wide: bool,
    share: ChunkShare | None,
) -> tuple[dict[int, Lowering], dict[int, Lowering]]:
    """By op, the launches before it and those after it. `experts`: ops that begin a layer's, and its number; `wide`:
    they arrive on a stream of their own; `share`: what gives the CPU some of a narrow chunk's, None: all are copied."""
    before: dict[int, Lowering] = {}
    after: dict[int, Lowering] = {}
    if tier is None or tier.prompts is None or not experts:
        return before, after
    downs = {
        tier.layer_of(op.weight): (i, op)
        for i, op in enumerate(program.ops)
        if isinstance(op, ExpertDown) and tier.table(op.weight) is not None
    }
    for i, layer in experts.items():
        op = program.ops[i]
        assert isinstance(op, ExpertGateUp)
        before[i] = partial(_before, tier.prompts, op, wide, share, not before)
        if share is not None:
            at, down = downs[layer]
            share.workers.bind(layer, op, down)
            after[at] = partial(_after, tier.prompts, down, share)
    return before, after


def nothing(at: Context) -> list[Launch]:
    """No launches."""
    return []


def _before(
    prompts: PromptExperts, op: ExpertGateUp, wide: bool, share: ChunkShare | None, first: bool, at: Context
) -> list[Launch]:
    return [*prompts.count(at, op), *([] if wide else prompts.needed(at, op, share, first))]


def _after(prompts: PromptExperts, op: ExpertDown, share: ChunkShare, at: Context) -> list[Launch]:
    return prompts.take(at, op, share)
