"""What kind of storage a file lies on."""

from pathlib import Path

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")


def in_memory(path: str | Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether the file lies in memory: reading it is copying, which several threads do faster than one."""
    where = Path(path).resolve()
    best, kind = Path("/"), ""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        _, point, fstype, *_ = line.split(" ")
        at = Path(point.replace("\\040", " "))
        if where.is_relative_to(at) and len(at.parts) >= len(best.parts):
            best, kind = at, fstype
    return kind in _IN_MEMORY
