"""Requests, the scheduler, the runner and the loop."""

from strata.engine.engine import Engine, GenerationStats, QueuePlace
from strata.engine.request import Request, SamplingParams, Status, Timings, TokenMask

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
