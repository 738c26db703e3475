"""The plan of memory, and memory of sequences: KV pages, recurrent state, checkpoints of both."""

from strata.memory.checkpoint import Checkpoint, copy_slot, put_checkpoint, take_checkpoint
from strata.memory.kv import KVPool, KVType, PageTable
from strata.memory.plan import plan
from strata.memory.plan_place import Placement
from strata.memory.plan_sizes import ModelSizes, PlanOptions
from strata.memory.state import DeltaShape, IndexShape, RingShape, StatePool, StateShape, settle

__all__ = [
    "Checkpoint",
    "DeltaShape",
    "IndexShape",
    "KVPool",
    "KVType",
    "ModelSizes",
    "PageTable",
    "Placement",
    "PlanOptions",
    "RingShape",
    "StatePool",
    "StateShape",
    "copy_slot",
    "plan",
    "put_checkpoint",
    "settle",
    "take_checkpoint",
]
