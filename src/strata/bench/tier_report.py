"""What a run of windows says: rates, hits by tier, who brought the misses, and the share of the run's own floor."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from strata.bench.windows import WindowResult
from strata.engine.load import LoadedModel

NODE_SECONDS = 0.95e-6  # a node of a CUDA graph on an H200 (docs/measurements.md)
DEVICE_COPY = 0.875  # of the memory's clock that a copy reaches there: 4.2 of 4.8 TB/s


@dataclass(frozen=True)
class Rates:
    """Bytes a second that the floor goes by: of device memory, of the link, of the CPU's share, of RAM."""

    device: float
    link: float
    cpu: float
    ram: float

    @property
    def misses(self) -> float:
        """At which misses can be served: link and CPU together, and no faster than RAM."""
        return min(self.link + self.cpu, self.ram)


@dataclass(frozen=True)
class TierReport:
    """Of some windows together."""

    tps: float  # median of the windows
    per_token: dict[str, float]  # counters
    followed: float  # share of the tokens that were the cycle's
    floor_tps: float

    @property
    def share(self) -> float:
        """Of the floor."""
        return self.tps / self.floor_tps

    def lines(self, name: str) -> list[str]:
        """For people."""
        c, distinct = self.per_token, max(self.per_token["distinct"], 1e-9)
        hits, ahead = c["hits"] - c["prefetch_used"], c["prefetch_used"]
        ring = c["staged_hits"] - ahead
        misses = max(c["copies"] + c["cpu_experts"] + ahead, 1e-9)
        megabytes = [n / 1e6 for n in (c["copy_bytes"], c["cpu_bytes"])]
        return [
            f"{name:12s}{self.tps:9.1f} tok/s, {self.share:.1%} of the floor of its own hits ({self.floor_tps:.0f})",
            f"  hits      {hits / distinct:9.1%} of {distinct:.0f} experts a token ({ring / distinct:.1%} in the ring)",
            f"  misses    {misses:9.1f} a token: link {c['copies'] / misses:.0%} ({megabytes[0]:.1f} MB), "
            f"CPU {c['cpu_experts'] / misses:.0%} ({megabytes[1]:.1f} MB), ahead {ahead / misses:.0%} "
            f"(of {c['prefetches']:.1f} guesses)",
            f"  promoted  {c['promotions']:9.1f} a token, {c['promotions_from_ram']:.1f} over the link; waits expired "
            f"{c['waits_expired']:.0f}, void steps {c['void_steps']:.0f}; {self.followed:.1%} of the tokens are the "
            "cycle's",
        ]


def tier_report(loaded: LoadedModel, results: Sequence[WindowResult], rates: Rates) -> TierReport:
    """Of windows that ran one after another."""
    tokens = sum(r.tokens for r in results)
    total = {k: sum(r.counts.get(k, 0) for r in results) for k in results[0].counts}
    per_token = {k: v / tokens for k, v in total.items()}
    per_token |= {k: float(total[k]) for k in ("waits_expired", "void_steps")}
    floor = floor_seconds(loaded, per_token, rates)
    followed = sum(r.followed for r in results) / tokens
    return TierReport(statistics.median(r.tps for r in results), per_token, followed, 1 / floor)


def floor_seconds(loaded: LoadedModel, per_token: dict[str, float], rates: Rates) -> float:
    """Of a token: what every step reads at the device's rate, the slower of hits and misses, and the nodes."""
    sizes = loaded.placement.model
    experts = sizes.experts_per_token * sum(sizes.expert_bytes)
    dense = loaded.weight_bytes_per_token - experts + 2 * sizes.slot
    each = per_token["hit_bytes"] / max(per_token["hits"], 1e-9)
    ahead = per_token["prefetch_used"] * each  # they came through the link
    hits = (per_token["hit_bytes"] - ahead) / rates.device
    misses = (per_token["copy_bytes"] + per_token["cpu_bytes"] + ahead) / rates.misses
    nodes = len(loaded.runner.programs.of("step", 1).replay.launches)  # type: ignore[attr-defined]  # a GPU's has them
    return dense / rates.device + max(hits, misses) + nodes * NODE_SECONDS


def measured_rates(loaded: LoadedModel) -> Rates:
    """Of the loaded device, from what was measured while it was loaded."""
    backend = loaded.runner.backend
    tier, driver = backend.tier, backend.driver  # type: ignore[attr-defined]  # a GPU's has them
    costs = tier.costs
    device = driver.properties.bandwidth * DEVICE_COPY or 1e12
    if costs is None:
        return Rates(device, tier.link_rate, 0.0, tier.link_rate)
    return Rates(device, 1e9 / costs[0], 1e9 / costs[1], 1e9 / costs[3])
