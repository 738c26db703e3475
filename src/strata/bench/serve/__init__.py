"""Load for any server that speaks OpenAI's protocol: many streams at once, their times, a report and a plot."""

from strata.bench.serve.client import Sample, Target
from strata.bench.serve.compare import Comparison, compare
from strata.bench.serve.load import run_load
from strata.bench.serve.measure import lines, measure
from strata.bench.serve.plot import plot
from strata.bench.serve.report import Report
from strata.bench.serve.workload import Load, PromptMaker

__all__ = [
    "Comparison",
    "Load",
    "PromptMaker",
    "Report",
    "Sample",
    "Target",
    "compare",
    "lines",
    "measure",
    "plot",
    "run_load",
]
