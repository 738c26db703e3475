"""Metrics of the memory tiers, read from the engine's counters when somebody asks."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from strata.memory import Placement

Counts = Mapping[str, int]

# Metric, its help, its label, and by label value the counter (memory/counters.py) that it tells.
_BY_TIER: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    (
        "strata_expert_hits",
        "Distinct experts of a layer's step found in a tier; ssd: read while the step waited.",
        "tier",
        {"vram": "hits", "ram": "ram_hits", "ssd": "ram_misses"},
    ),
    (
        "strata_expert_bytes",
        "Bytes of experts that steps took from a tier; ram: copied over the link.",
        "tier",
        {"vram": "hit_bytes", "ram": "copy_bytes", "ssd": "read_bytes"},
    ),
    (
        "strata_expert_moves",
        "Experts that changed tiers.",
        "move",
        {
            "promoted": "promotions",
            "retired": "retirements",
            "evicted": "evictions",
            "prefetched": "prefetches",
        },
    ),
    (
        "strata_lookahead_experts",
        "Experts that the next layer's router named a layer early.",
        "kind",
        {"guessed": "lookahead_guesses", "right": "lookahead_right", "routed": "lookahead_routed"},
    ),
    (
        "strata_ngram_rows",
        "Rows of the n-gram table, and of those the ones in its cache.",
        "kind",
        {"asked": "ngram_rows", "hit": "ngram_hits"},
    ),
    (
        "strata_kv_groups",
        "Selected groups of KV cells; hit: in VRAM, fetched: brought in, streamed: read where they lie.",
        "kind",
        {"hit": "kv_hits", "fetched": "kv_fetches", "streamed": "kv_streamed"},
    ),
)
_PLAIN = (
    ("strata_expert_requests", "Distinct experts that layers of steps asked for.", "distinct"),
    ("strata_expert_pairs_routed", "Pairs of a row and an expert that were routed.", "routed_pairs"),
    ("strata_expert_pairs_computed", "Pairs of a row and an expert that were computed.", "computed_pairs"),
    ("strata_expert_cpu", "Distinct experts missing in VRAM that the CPU computed.", "cpu_experts"),
    ("strata_promotion_bytes", "Bytes that promotions moved over the link.", "promotion_bytes"),
    ("strata_prefetches_used", "Experts read ahead that were then routed to.", "prefetch_used"),
    ("strata_ssd_read_errors", "Reads that failed.", "read_errors"),
    ("strata_ssd_wait_nanoseconds", "Time that steps waited for the SSD.", "read_wait_ns"),
    ("strata_ngram_read_bytes", "Bytes of n-gram rows read from the SSD.", "ngram_read_bytes"),
    ("strata_tier_waits_expired", "Waits for a worker or a copy that ran out.", "waits_expired"),
    ("strata_void_steps", "Steps that were void and left no trace.", "void_steps"),
)


class TierCollector(Collector):
    """Counters by tier, and the plan's sizes; nothing of what the engine does not count."""

    def __init__(self, counts: Callable[[], Counts], placement: Placement):
        self._counts, self._placement = counts, placement

    def collect(self) -> Iterable[Metric]:
        """What the registry asks for."""
        counts = self._counts()
        for name, text, label, values in _BY_TIER:
            if any(counter in counts for counter in values.values()):
                family = CounterMetricFamily(name, text, labels=[label])
                for value, counter in values.items():
                    if counter in counts:
                        family.add_metric([value], counts[counter])
                yield family
        for name, text, counter in _PLAIN:
            if counter in counts:
                yield CounterMetricFamily(name, text, value=counts[counter])
        yield from self._sizes()

    def _sizes(self) -> Iterable[Metric]:
        p = self._placement
        planned = GaugeMetricFamily("strata_planned_bytes", "The memory plan.", labels=["tier", "part"])
        for tier in (p.vram, p.ram):
            for part in () if tier is None else tier.parts:
                planned.add_metric([tier.name.lower() if tier else "", part.name], part.nbytes)
        yield planned
        yield GaugeMetricFamily("strata_expert_slots", "Experts that VRAM holds.", value=p.slots.count)
        yield GaugeMetricFamily(
            "strata_experts", "Routed experts of the model.", value=p.model.num_routed_experts
        )
