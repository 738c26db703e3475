"""Metrics of drafts, read from the engine's counts when somebody asks. vLLM's names for what it has too."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from strata.engine.drafts import DraftReport

Count = tuple[str, int, int]  # label's value, verified, accepted


class DraftCollector(Collector):
    """What drafts, how wide, and how much of it was right; nothing while the model is not in memory."""

    def __init__(self, report: Callable[[], DraftReport | None], model_id: str):
        self._report, self._model = report, model_id

    def collect(self) -> Iterable[Metric]:
        """What the registry asks for."""
        report = self._report()
        if report is None:
            return
        drafter = GaugeMetricFamily("strata_drafter", "Which drafters are in use.", labels=["drafter"])
        for name in ("layer", "lookup", "none"):
            drafter.add_metric([name], float(name in report.drafters))
        yield drafter
        c = report.counts
        numbers = {"configured": report.configured, "widest": c.widest, "mean_accepted": c.mean_accepted}
        for name, value in numbers.items():
            yield GaugeMetricFamily(f"strata_drafts_{name}", _HELP[name], value=value)
        yield self._total("vllm:spec_decode_num_drafts", "Chains of drafts verified.", c.windows)
        proposed, accepted = sum(c.proposed.values()), sum(c.accepted.values())
        yield self._total("vllm:spec_decode_num_draft_tokens", "Drafts verified.", proposed)
        yield self._total("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.", accepted)
        by_drafter = [(name, c.proposed[name], c.accepted[name]) for name in ("layer", "lookup")]
        yield _pairs("strata_drafts", "Drafts, by who made them.", "drafter", by_drafter)
        by_place = [(str(p), c.proposed_at[p], c.accepted_at[p]) for p in sorted(c.proposed_at)]
        yield _pairs("strata_drafts_by_place", "Drafts whose forerunners were right.", "place", by_place)
        by_script = [(s, c.proposed_in[s], c.accepted_in[s]) for s in sorted(c.proposed_in)]
        yield _pairs("strata_drafts_by_script", "First drafts, by what came.", "script", by_script)

    def _total(self, name: str, text: str, value: int) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


_HELP = {
    "configured": "Most drafts at once that are allowed.",
    "widest": "Most drafts verified at once for one sequence.",
    "mean_accepted": "Drafts accepted of a chain, so far.",
}


def _pairs(name: str, text: str, label: str, values: Iterable[Count]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label, "kind"])
    for value, proposed, accepted in values:
        family.add_metric([value, "verified"], proposed)
        family.add_metric([value, "accepted"], accepted)
    return family
