"""The plan of memory, and memory of sequences: KV pages, recurrent state, checkpoints of both."""

from strata.memory.checkpoint import (
    Checkpoint,
    checkpoint_bytes,
    copy_slot,
    put_checkpoint,
    state_fingerprint,
    take_checkpoint,
)
from strata.memory.kv import KVPool, KVType
from strata.memory.pages import PageTable
from strata.memory.plan import plan
from strata.memory.plan_place import Placement
from strata.memory.plan_sizes import ModelSizes, PlanOptions
from strata.memory.prefix_tree import End, Kept, Match, Node, PrefixTree, page_key
from strata.memory.spare import SpareBlocks
from strata.memory.state import DeltaShape, IndexShape, RingShape, StatePool, StateShape, settle

__all__ = [
    "Checkpoint",
    "DeltaShape",
    "End",
    "IndexShape",
    "KVPool",
    "KVType",
    "Kept",
    "Match",
    "ModelSizes",
    "Node",
    "PageTable",
    "Placement",
    "PlanOptions",
    "PrefixTree",
    "RingShape",
    "SpareBlocks",
    "StatePool",
    "StateShape",
    "checkpoint_bytes",
    "copy_slot",
    "page_key",
    "plan",
    "put_checkpoint",
    "settle",
    "state_fingerprint",
    "take_checkpoint",
]
