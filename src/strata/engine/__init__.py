"""Requests, the scheduler, the runner and the loop."""

from strata.engine.engine import Engine, GenerationStats
from strata.engine.request import Request, SamplingParams

__all__ = ["Engine", "GenerationStats", "Request", "SamplingParams"]
