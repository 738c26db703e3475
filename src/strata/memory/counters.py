"""What the tiers count, by name; the order is that of `Counter` in native/include/strata/tiers.h."""

from strata import _native

NAMES = (
    "steps",
    "routed_pairs",
    "computed_pairs",
    "distinct",
    "hits",
    "hit_bytes",
    "copies",
    "copy_bytes",
    "cpu_experts",
    "cpu_bytes",
    "promotions",
    "promotion_bytes",
    "retirements",
    "waits_expired",
    "void_steps",
    "ram_hits",
    "ram_misses",
    "reads",
    "read_bytes",
    "read_errors",
    "read_wait_ns",
    "evictions",
    "prefetches",
    "prefetch_used",
    "lookahead_guesses",
    "lookahead_right",
    "lookahead_routed",
    "ngram_rows",
    "ngram_hits",
    "ngram_reads",
    "ngram_read_bytes",
    "lookahead_held",
    "staged_hits",
    "promotions_from_ram",
)


def read_counters(counters: _native.TierCounters) -> dict[str, int]:
    """Every counter since the start."""
    return dict(zip(NAMES, counters.read(), strict=True))
