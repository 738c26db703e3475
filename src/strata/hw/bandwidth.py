"""Measured memory bandwidth, the yardstick for everything that streams weights."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from strata import _native
from strata.hw.cpu import cpu_count
from strata.hw.memory import memory

BYTES = 1 << 30  # well beyond any last-level cache, so that every pass comes from memory


def measure_read_bandwidth(threads: int = 0, seconds: float = 0.5, size: int = BYTES) -> float:
    """Bytes per second that `threads` (0: all granted) read together; the best pass within about `seconds`.

    The best, because whatever else runs on the machine can only lower a pass.
    """
    threads = threads or cpu_count()
    size = min(size, memory().available // 4)
    words = np.ones(max(size // 8, threads), dtype=np.uint64)
    parts = np.array_split(words, threads)

    def read(part: np.ndarray) -> int:
        return int(_native.sum_words(part.ctypes.data, part.size))

    with ThreadPoolExecutor(threads) as pool:
        best, end = 0.0, time.perf_counter() + seconds
        while best == 0.0 or time.perf_counter() < end:
            start = time.perf_counter()
            total = sum(pool.map(read, parts))
            best = max(best, words.nbytes / (time.perf_counter() - start))
            if total != words.size:
                raise AssertionError(f"sum of {words.size} ones is {total}")
    return best
