"""Backends lower a program for a device and replay it."""

from strata.backends.base import Backend, Replay
from strata.backends.reference import ReferenceBackend

__all__ = ["Backend", "ReferenceBackend", "Replay"]
