"""How much RAM sessions may take: what was asked for, or what is really left, whichever is less."""

from collections.abc import Callable
from time import monotonic

from strata import hw
from strata.log import logger

RESERVE = 512 << 20  # bytes left to everything else
CHECK_SECONDS = 1.0

log = logger(__name__)


def available_bytes() -> int:
    """Free memory of the machine or of the control group."""
    return hw.memory().available


class RamBudget:
    """A limit that follows what the machine has left."""

    def __init__(self, wanted: int, available: Callable[[], int] = available_bytes, reserve: int = RESERVE):
        self._wanted, self._available, self._reserve = wanted, available, reserve
        self._checked = -CHECK_SECONDS
        self._limit = wanted
        if self.limit(0) < wanted:
            log.warning(
                "--conversation-cache-mib %d is more than is left; %d MiB are taken",
                wanted >> 20,
                self._limit >> 20,
            )

    def limit(self, used: int) -> int:
        """Bytes that may be held now, when `used` are; read anew at most once a second."""
        now = monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self._limit = max(min(self._wanted, used + self._available() - self._reserve), 0)
        return self._limit
