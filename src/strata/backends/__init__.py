"""Backends lower a program for a device and replay it."""

from strata.backends.base import Backend, PeekingReplay, Replay
from strata.backends.reference import ReferenceBackend

__all__ = ["Backend", "PeekingReplay", "ReferenceBackend", "Replay"]
