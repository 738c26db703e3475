"""Backends lower a program for a device and replay it."""

from strata.backends.base import DRAFTED, SAMPLED, Backend, PeekingReplay, Replay, Stamp
from strata.backends.reference import ReferenceBackend

__all__ = ["DRAFTED", "SAMPLED", "Backend", "PeekingReplay", "ReferenceBackend", "Replay", "Stamp"]
