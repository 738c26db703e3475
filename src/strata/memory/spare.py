"""Memory that is granted before it is asked for."""

import threading
from collections import deque

import numpy as np
from numpy.typing import NDArray

_PAGE = 4096
_WORTH_A_THREAD = 1 << 20  # bytes; less is granted in a moment


class SpareBlocks:
    """Blocks of one size, u8 [nbytes], whose pages the system has given already.

    Fresh memory is granted page by page as it is first written, and where RAM is nearly full the system looks for each
    page: the step that writes it stands still. A thread does that ahead of time, for `count` blocks.
    """

    def __init__(self, nbytes: int, count: int = 2):
        self.nbytes, self._count = nbytes, count if nbytes >= _WORTH_A_THREAD else 0
        self._ready: deque[NDArray[np.uint8]] = deque()
        self._lock = threading.Lock()  # of what follows: whether a thread will still look at what is missing
        self._filling = False
        self._thread: threading.Thread | None = None
        self._prepare()

    def take(self) -> NDArray[np.uint8]:
        """A block that is nobody else's; a fresh one where none is ready."""
        try:
            block = self._ready.popleft()
        except IndexError:
            block = np.empty(self.nbytes, np.uint8)
        self._prepare()
        return block

    def wait(self) -> None:
        """Until all are ready."""
        if self._thread is not None:
            self._thread.join()

    def _prepare(self) -> None:
        """Begins to fill what is missing, unless a thread is at it."""
        with self._lock:
            if self._filling or len(self._ready) >= self._count:
                return
            self._filling = True
        self._thread = threading.Thread(target=self._fill, name="spare-blocks", daemon=True)
        self._thread.start()

    def _fill(self) -> None:
        while self._lacks():
            try:
                block = np.empty(self.nbytes, np.uint8)
            except MemoryError:
                self._filling = False
                return  # whoever takes one finds out, and can say what for
            block[::_PAGE] = 0
            self._ready.append(block)

    def _lacks(self) -> bool:
        """Whether the thread goes on; it ends here, so that none that is ending counts as filling."""
        with self._lock:
            self._filling = len(self._ready) < self._count
            return self._filling
