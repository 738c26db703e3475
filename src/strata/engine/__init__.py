"""Requests, the scheduler, the runner and the loop."""

from strata.engine.engine import Engine, GenerationStats
from strata.engine.request import Request, SamplingParams, Status, Timings, TokenMask
from strata.engine.waiting import QueuePlace

__all__ = [
    "Engine",
    "GenerationStats",
    "QueuePlace",
    "Request",
    "SamplingParams",
    "Status",
    "Timings",
    "TokenMask",
]
