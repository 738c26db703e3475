"""kernels/hot.txt: the kernels that most of a decode step goes to, and the registers and spills they may have."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from strata.backends.cuda.compile import KERNELS
from strata.backends.cuda.driver import Kernel, Source

_LINE = re.compile(r"(\w+) of (\S+)((?: \S+=\S+)*) \| (\d+) (\d+)((?: sm_\d+)*)")
_USED = re.compile(r"Used (\d+) registers")
_SPILLED = re.compile(r"(\d+) bytes spill stores")


@dataclass(frozen=True)
class HotKernel:
    """A kernel and its limits: registers a thread, bytes of spill stores; architectures they are for, none: all."""

    kernel: Kernel
    registers: int
    spills: int
    archs: tuple[str, ...] = ()

    def excess(self, log: str) -> str | None:
        """What ptxas says beyond the limits (of the worst entry of the file); None where they are kept."""
        used = max((int(n) for n in _USED.findall(log)), default=0)
        spilled = max((int(n) for n in _SPILLED.findall(log)), default=0)
        if not used:
            return f"{self.kernel}: the compiler tells no registers"
        if used <= self.registers and spilled <= self.spills:
            return None
        return (
            f"{self.kernel}: {used} registers of {self.registers}, {spilled} bytes spilled of {self.spills}"
        )


def hot_kernels(text: str | None = None) -> list[HotKernel]:
    """The lines of hot.txt, or of `text`; ValueError names one that is none."""
    lines = (KERNELS / "hot.txt").read_text(encoding="utf-8") if text is None else text
    found = []
    for line in lines.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(
                f"hot.txt: {line!r} is not 'entry of FILE MACROS | registers spills [ARCHITECTURES]'"
            )
        entry, file, macros, registers, spills, archs = match.groups()
        pairs = tuple((name, value) for name, value in (m.split("=", 1) for m in macros.split()))
        found.append(
            HotKernel(Kernel(Source(file, pairs), entry), int(registers), int(spills), tuple(archs.split()))
        )
    return found


def missing(times: Iterable[tuple[str, float]], share: float = 0.9) -> list[str]:
    """Of (kernel, time), those of the first `share` of all time, longest first, that hot.txt lacks."""
    by: dict[str, float] = {}
    for kernel, time in times:
        by[kernel] = by.get(kernel, 0.0) + time
    known, total, seen, found = {str(h.kernel) for h in hot_kernels()}, sum(by.values()), 0.0, []
    for kernel, time in sorted(by.items(), key=lambda x: -x[1]):
        if seen >= share * total:
            break
        seen += time
        if kernel not in known:
            found.append(kernel)
    return found
