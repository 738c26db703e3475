"""Limits of the control group this process runs in (Linux admin-guide, cgroup-v1 and cgroup-v2).

`root` is the file system's root; tests put a planted tree there.
"""

from collections.abc import Iterator
from pathlib import Path

UNLIMITED_V1 = 1 << 62  # version 1 writes "no limit" as a number near 2^63


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs' worth of time granted, the least along the group's path; None when there is no quota."""
    quotas = []
    for directory in _directories(root, "cpu"):
        fields = _read(directory / "cpu.max").split()
        if not fields:
            fields = [_read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")]
        if len(fields) == 2 and all(f.isdigit() for f in fields) and int(fields[1]):
            quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes of memory granted, the least along the group's path; None when there is no limit."""
    texts = [
        _read(directory / name)
        for directory in _directories(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < UNLIMITED_V1), default=None)


def memory_used(root: Path = Path("/")) -> int:
    """Bytes that the limiting group holds and the kernel cannot simply drop; 0 when no group tells."""
    for directory in reversed(list(_directories(root, "memory"))):
        for current, limit in (
            ("memory.current", "memory.max"),
            ("memory.usage_in_bytes", "memory.limit_in_bytes"),
        ):
            used, most = _read(directory / current), _read(directory / limit)
            if used.isdigit() and most.isdigit() and int(most) < UNLIMITED_V1:
                return max(int(used) - _droppable(directory), 0)
    return 0


def _droppable(directory: Path) -> int:
    """File pages of a group."""
    pairs = (line.split() for line in _read(directory / "memory.stat").splitlines())
    found = {
        pair[0].removeprefix("total_"): int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()
    }
    return found.get("inactive_file", 0) + found.get("active_file", 0)


def _directories(root: Path, controller: str) -> Iterator[Path]:
    """The group's directories for a controller, from the mount point down, in every hierarchy that has it.

    In a container the path names the host's tree while the mount shows the group itself as its root: what is
    not there reads as empty, and the mount point is always among those tried.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        if not controllers and (root / "sys/fs/cgroup/unified").is_dir():
            mount = root / "sys/fs/cgroup/unified"
        yield mount
        for part in Path(path.lstrip("/")).parts:
            mount /= part
            yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
