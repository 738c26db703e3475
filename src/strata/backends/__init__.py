"""Backends lower a program for a device and replay it."""

from strata.backends.base import SAMPLED, Backend, PeekingReplay, Replay, Stamp
from strata.backends.reference import ReferenceBackend

__all__ = ["SAMPLED", "Backend", "PeekingReplay", "ReferenceBackend", "Replay", "Stamp"]
