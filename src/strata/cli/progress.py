"""A progress bar of bytes on stderr, where that is a terminal."""

import sys
import time

_WIDTH = 30
_REDRAW_SECONDS = 0.1


class ReadProgress:
    """Called with bytes read and bytes in all; draws over its own line and ends it when all is there."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._started = time.monotonic()
        self._drawn = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._terminal or (done < total and now - self._drawn < _REDRAW_SECONDS):
            return
        self._drawn = now
        filled = _WIDTH * done // max(total, 1)
        rate = done / max(now - self._started, 1e-3) / 1e9
        end = "\n" if done >= total else ""
        sys.stderr.write(
            f"\rexperts [{'#' * filled}{' ' * (_WIDTH - filled)}] {done / 1e9:.1f} of {total / 1e9:.1f} GB, "
            f"{rate:.2f} GB/s{end}"
        )
        sys.stderr.flush()
