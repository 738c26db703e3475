"""Requests, the scheduler, the runner and the loop."""

from strata.engine.engine import Engine, GenerationStats
from strata.engine.request import Request, SamplingParams, Status

__all__ = ["Engine", "GenerationStats", "Request", "SamplingParams", "Status"]
