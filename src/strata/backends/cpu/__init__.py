"""The CPU backend: op records become native records; one native call replays them on the thread pool."""

from strata.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
