"""Memory of sequences: KV pages, recurrent state, checkpoints of both."""

from strata.memory.checkpoint import Checkpoint, copy_slot, put_checkpoint, take_checkpoint
from strata.memory.kv import KVPool, KVType, PageTable
from strata.memory.state import DeltaShape, IndexShape, RingShape, StatePool, StateShape, settle

__all__ = [
    "Checkpoint",
    "DeltaShape",
    "IndexShape",
    "KVPool",
    "KVType",
    "PageTable",
    "RingShape",
    "StatePool",
    "StateShape",
    "copy_slot",
    "put_checkpoint",
    "settle",
    "take_checkpoint",
]
