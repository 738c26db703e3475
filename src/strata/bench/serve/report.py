"""Figures of a load, engine rates and the client's wall clock apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata.bench.serve.client import Sample

WINDOWS = 10
_DIGITS = 5


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """mean, p50, p90, p99 (nearest rank) and max; empty for no values."""
    if not values:
        return {}
    ranked = sorted(values)
    ranks = {p: ranked[min(len(ranked) - 1, max(0, -(-p * len(ranked) // 100) - 1))] for p in (50, 90, 99)}
    found = {"mean": sum(ranked) / len(ranked), **{f"p{p}": v for p, v in ranks.items()}, "max": ranked[-1]}
    return {name: round(value, _DIGITS) for name, value in found.items()}


@dataclass(frozen=True)
class Report:
    """Of the samples of one load."""

    samples: Sequence[Sample]

    @property
    def good(self) -> list[Sample]:
        """Those that came to their end."""
        return [s for s in self.samples if not s.error]

    @property
    def wall(self) -> float:
        """Seconds from the first request sent to the last answer's end."""
        return max(s.ended for s in self.samples) - min(s.begun for s in self.samples)

    @property
    def decode_seconds(self) -> float:
        """Seconds during which at least one answer was between its first and its last piece."""
        total, end = 0.0, 0.0
        for begin, stop in sorted((s.pieces[0], s.pieces[-1]) for s in self.good):
            total += max(0.0, stop - max(begin, end))
            end = max(end, stop)
        return total

    def figures(self) -> dict[str, Any]:
        """Seconds and tokens a second. `aggregate_tps`: all output over the wall clock; `decode_tps`: tokens after the
        first over the time in which any answer was being decoded; `decode_share`: that time's share of the wall."""
        good, wall, decode = self.good, self.wall, self.decode_seconds
        output = sum(s.tokens for s in good)
        known = [s for s in good if s.prompt_tokens is not None]
        tpots = [s.tpot for s in good if s.tpot is not None]
        return {
            "requests": len(self.samples),
            "failed": len(self.samples) - len(good),
            "wall_s": round(wall, _DIGITS),
            "prompt_tokens": sum(s.prompt_tokens or 0 for s in known) if len(known) == len(good) else None,
            "cached_tokens": sum(s.cached_tokens for s in good),
            "output_tokens": output,
            "counted_by": "usage" if all(s.output_tokens is not None for s in good) else "pieces",
            "aggregate_tps": _rate(output, wall),
            "decode_tps": _rate(output - len(good), decode),
            "decode_share": round(decode / wall, 4) if wall else 0.0,
            "request_tps": percentiles([1 / t for t in tpots if t > 0]),
            "ttft_s": percentiles([s.ttft for s in good]),
            "itl_s": percentiles([gap for s in good for gap in s.gaps]),
            "tpot_s": percentiles(tpots),
            "e2e_s": percentiles([s.ended - s.begun for s in good]),
        }

    def windows(self) -> list[dict[str, Any]]:
        """The same time cut into ten, by when answers ended, to see drift."""
        begin, width = min(s.begun for s in self.samples), self.wall / WINDOWS
        found = []
        for i in range(WINDOWS):
            low, high = begin + i * width, begin + (i + 1) * width
            inside = [
                s for s in self.samples if low <= s.ended < high or (i == WINDOWS - 1 and s.ended >= high)
            ]
            good = [s for s in inside if not s.error]
            found.append(
                {
                    "until_s": round((i + 1) * width, 2),
                    "requests": len(inside),
                    "failed": len(inside) - len(good),
                    "output_tps": _rate(sum(_tokens_within(s, low, high) for s in self.good), width),
                    "ttft_p50_s": percentiles([s.ttft for s in good]).get("p50"),
                    "tpot_p50_s": percentiles([s.tpot for s in good if s.tpot is not None]).get("p50"),
                }
            )
        return found

    def timeline(self) -> list[dict[str, float]]:
        """Of each good request: sent, first piece, end; seconds from the start."""
        begin = min(s.begun for s in self.samples)
        return [
            {
                "sent": round(s.begun - begin, 4),
                "first": round(s.pieces[0] - begin, 4),
                "end": round(s.ended - begin, 4),
            }
            for s in self.good
        ]


def _tokens_within(sample: Sample, low: float, high: float) -> float:
    """A piece may hold several tokens; all pieces count alike."""
    inside = sum(low <= piece <= high for piece in sample.pieces)
    return inside * sample.tokens / len(sample.pieces)


def _rate(amount: float, seconds: float) -> float:
    return round(amount / seconds, 2) if seconds > 0 else 0.0
