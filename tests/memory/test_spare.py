"""Blocks that are granted ahead of time."""

import mmap
from pathlib import Path

import numpy as np

from strata.memory import SpareBlocks

SIZE = 5 << 20


def granted(block):
    """Which pages of a block the system has given, by its own table: bit 63 of an entry of eight bytes."""
    first, last = block.ctypes.data // mmap.PAGESIZE, (block.ctypes.data + block.nbytes - 1) // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as table:
        table.seek(first * 8)
        entries = np.frombuffer(table.read((last - first + 1) * 8), np.uint64)
    return entries >> np.uint64(63) == 1


def test_blocks_are_granted_before_they_are_asked_for():
    spare = SpareBlocks(SIZE, 2)
    for _ in range(3):
        spare.wait()
        blocks = [spare.take(), spare.take()]
        for block in blocks:
            assert block.shape == (SIZE,)
            # the pages at both ends may be shared with what lies beside the block
            assert granted(block)[1:-1].all()
    assert not granted(np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)).any()  # what would be seen without


def test_no_block_is_handed_out_twice():
    spare = SpareBlocks(SIZE, 2)
    blocks = [spare.take() for _ in range(7)]  # faster than the thread
    for i, block in enumerate(blocks):
        block[:] = i
    spare.wait()
    assert [set(np.unique(b)) for b in blocks] == [{i} for i in range(7)]


def test_small_blocks_need_no_thread():
    spare = SpareBlocks(1000)
    assert spare.take().shape == (1000,)
    assert spare._thread is None
