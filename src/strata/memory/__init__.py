"""Where bytes live: KV pages now; experts and tiers later."""

from strata.memory.kv import KVPool, PageTable

__all__ = ["KVPool", "PageTable"]
