"""What a plan is made for: memory, lockable memory, GPUs. A record, so that machines can be planned for unseen."""

import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path

from strata.hw.cgroup import memory_used
from strata.hw.cpu import cpu_count
from strata.hw.memory import Memory, memory

GIB = 1 << 30
DEFAULT_LINK = 25e9  # bytes per second between RAM and a GPU, where nothing was measured: half of PCIe 5 x16


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Bytes; `link` in bytes per second."""

    name: str
    vram: int
    free: int
    link: float = DEFAULT_LINK


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes. `others`: in use by other processes, as far as it cannot be dropped."""

    ram: int
    others: int
    cgroup_limit: int | None = None
    cgroup_others: int = 0  # in use in the control group besides this process
    lockable: int | None = None  # None: no limit
    huge_page: int = 2 << 20  # of transparent huge pages; 0: they are off
    threads: int = 1
    gpus: tuple[Gpu, ...] = ()

    @property
    def ram_capacity(self) -> int:
        """What this process may hold: of the machine and of its control group, the less."""
        of_machine = self.ram - self.others
        if self.cgroup_limit is not None:
            of_machine = min(of_machine, self.cgroup_limit - self.cgroup_others)
        return max(of_machine, 0)

    def taken_as(self, ram_gib: float, vram_gib: float, link_gbps: float) -> "Machine":
        """The machine with these sizes instead of its own (0: its own); VRAM where there is no GPU makes one.

        Some machines report less memory than they have until it is touched, so a given size counts as it is.
        """
        made = self if not ram_gib else replace(self, ram=int(ram_gib * GIB))
        gpus = made.gpus
        if vram_gib:
            size = int(vram_gib * GIB)
            used = gpus[0].vram - gpus[0].free if gpus else 0
            first = gpus[0] if gpus else Gpu("a GPU of this size", size, size)
            gpus = (replace(first, vram=size, free=max(size - used, 0)), *gpus[1:])
        if link_gbps and gpus:
            gpus = (replace(gpus[0], link=link_gbps * 1e9), *gpus[1:])
        return replace(made, gpus=gpus)


def machine(threads: int = 0, root: Path = Path("/"), found: Memory | None = None) -> Machine:
    """This machine as it is now; GPUs are added by whoever drives them."""
    found = found or memory(root)
    own = private_bytes(root)
    used = memory_used(root)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Machine(
        ram=found.total,
        others=max(found.total - found.available - own, 0),
        cgroup_limit=found.limit,
        cgroup_others=max(used - own, 0),
        lockable=None if soft == resource.RLIM_INFINITY else soft,
        huge_page=_huge_page(root),
        threads=threads or cpu_count(),
    )


def private_bytes(root: Path = Path("/")) -> int:
    """What this process holds in memory now besides mapped files, whose pages the kernel counts as available."""
    try:
        _, resident, shared, *_ = map(int, (root / "proc/self/statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _huge_page(root: Path) -> int:
    base = root / "sys/kernel/mm/transparent_hugepage"
    try:
        mode = (base / "enabled").read_text()
        return 0 if "[never]" in mode else int((base / "hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0
