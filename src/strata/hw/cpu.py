"""Processors this process may use."""

import os
from pathlib import Path

from strata import _native
from strata.hw.cgroup import cpu_quota


def cpu_count(root: Path = Path("/")) -> int:
    """Threads that can run at once: the affinity mask, cut to the control group's quota, at least 1.

    A quota is rounded down: threads that wait for each other lose more to throttling than a part of a CPU
    gives.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def isa_level() -> str:
    """Instruction set level that the CPU kernels run at: generic, avx2, avxvnni or avx512."""
    return _native.isa_level()
