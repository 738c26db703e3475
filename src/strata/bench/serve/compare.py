"""Two runs beside each other, and where one begins to pay."""

from dataclasses import dataclass
from typing import Any

from strata.errors import UsageError


@dataclass(frozen=True)
class Comparison:
    """Ratios this / other of medians and rates (None: unknown), and `break_even` in output tokens: an answer of that
    length takes both the same time; None where one is ahead at every length. `ahead` says who is, past that length."""

    ttft: float | None
    tpot: float | None
    aggregate_tps: float | None
    break_even: float | None
    ahead: str  # this, other, neither

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        return {
            "ttft_ratio": self.ttft,
            "tpot_ratio": self.tpot,
            "aggregate_tps_ratio": self.aggregate_tps,
            "break_even_tokens": self.break_even,
            "ahead_in_long_answers": self.ahead,
        }


def compare(this: dict[str, Any], other: dict[str, Any]) -> Comparison:
    """Of two runs' figures; UsageError where one lacks them. An answer of n tokens takes ttft + (n - 1) * tpot, of
    medians, so that two lines cross at one length at most."""
    try:
        first = (float(this["ttft_s"]["p50"]), float(other["ttft_s"]["p50"]))
        each = (float(this["tpot_s"]["p50"]), float(other["tpot_s"]["p50"]))
        rates = (float(this["aggregate_tps"]), float(other["aggregate_tps"]))
    except (LookupError, TypeError, ValueError):
        raise UsageError("one of the two runs has no medians of first and later tokens to compare") from None
    crossing = (first[1] - first[0]) / (each[0] - each[1]) + 1 if each[0] != each[1] else 0.0
    ahead = "neither" if each[0] == each[1] else "this" if each[0] < each[1] else "other"
    return Comparison(
        _ratio(*first), _ratio(*each), _ratio(*rates), round(crossing, 1) if crossing >= 1 else None, ahead
    )


def _ratio(a: float, b: float) -> float | None:
    return round(a / b, 4) if b else None
