"""Measuring a model: how fast it runs, and how well it predicts a text."""

from strata.bench.perplexity import Perplexity, measure_perplexity
from strata.bench.speed import Rate, SpeedReport, Workload, measure_speed

__all__ = ["Perplexity", "Rate", "SpeedReport", "Workload", "measure_perplexity", "measure_speed"]
