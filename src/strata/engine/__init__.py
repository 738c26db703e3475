"""Requests, the scheduler, the runner and the loop."""

from strata.engine.engine import Engine, GenerationStats
from strata.engine.pooling import Pooling, PoolingMode, pooling_mode
from strata.engine.request import Request, SamplingParams, Status, Timings, TokenMask
from strata.engine.waiting import QueuePlace

__all__ = [
    "Engine",
    "GenerationStats",
    "Pooling",
    "PoolingMode",
    "QueuePlace",
    "Request",
    "SamplingParams",
    "Status",
    "Timings",
    "TokenMask",
    "pooling_mode",
]
