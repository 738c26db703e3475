"""Memory of sequences: KV pages and recurrent state."""

from strata.memory.kv import KVPool, KVType, PageTable
from strata.memory.state import DeltaShape, IndexShape, RingShape, StatePool, StateShape

__all__ = [
    "DeltaShape",
    "IndexShape",
    "KVPool",
    "KVType",
    "PageTable",
    "RingShape",
    "StatePool",
    "StateShape",
]
