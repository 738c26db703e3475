"""Main memory: what there is, what is free, and what the control group grants."""

import contextlib
import ctypes
from dataclasses import dataclass
from pathlib import Path

from strata.hw.cgroup import memory_limit


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `limit` is the control group's, None without one."""

    total: int
    available: int
    limit: int | None


def memory(root: Path = Path("/")) -> Memory:
    """Read /proc/meminfo and the control group; `available` counts pages that the kernel can drop."""
    fields = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    limit = memory_limit(root)
    available = fields["MemAvailable"]
    return Memory(fields["MemTotal"], available if limit is None else min(available, limit), limit)


def give_back() -> None:
    """Hands what was freed back to the system, where the C library keeps it for itself (glibc: malloc_trim)."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
