"""Who computes the experts that a device misses: the link and the device, or CPU workers."""

from strata.config import EngineOptions
from strata.errors import UsageError

BY_COSTS = -1.0


def cpu_share(options: EngineOptions) -> float:
    """Share of the misses that the CPU takes, 0 to 1; BY_COSTS: by measured rates. UsageError for a contradiction."""
    cpu, link = _share(options.cpu_share), _share(options.pcie_share)
    if cpu is None:
        return BY_COSTS if link is None else 1.0 - link
    if link is not None and abs(cpu + link - 1.0) > 1e-6:
        raise UsageError(f"--cpu-share {cpu:g} and --pcie-share {link:g} are of the same misses; give one")
    return cpu


def _share(text: str) -> float | None:
    return None if text == "auto" else float(text)
