"""Thread pool and program: replays end, counts and ranges are checked, forks and many threads do not hang."""

import ctypes
import ctypes.util
import os
import platform
import threading

import numpy as np
import pytest
from machines import Array, count

from strata import _native

ONE_ROW = count(1)


def doubling(pool: _native.ThreadPool, x: Array, ops: int) -> _native.Program:
    """A program of `ops` records that each double x in place; every thread has a part of x."""
    program = _native.Program(pool)
    for _ in range(ops):
        program.add("scale", [ONE_ROW.ctypes.data, x.ctypes.data, x.ctypes.data], [x.size], [2.0])
    return program


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_every_record_runs_once_in_order(threads: int) -> None:
    x = np.ones(256 * 16, np.float32)
    program = doubling(_native.ThreadPool(threads), x, 20)
    assert len(program) == 20
    assert program.run(0, 20) == 0
    np.testing.assert_array_equal(x, np.float32(2.0**20))
    program.run(5, 8)
    np.testing.assert_array_equal(x, np.float32(2.0**23))


def test_ten_thousand_empty_replays() -> None:
    program = doubling(_native.ThreadPool(2), np.zeros(1, np.float32), 1)
    for _ in range(10_000):
        program.run(0, 0)
    for _ in range(1_000):
        program.run(0, 1)


def test_two_callers_share_one_pool() -> None:
    pool = _native.ThreadPool(2)
    arrays = [np.ones(1024, np.float32) for _ in range(2)]
    programs = [doubling(pool, x, 4) for x in arrays]

    def replay(program: _native.Program) -> None:
        for _ in range(25):
            program.run(0, 4)

    callers = [threading.Thread(target=replay, args=(p,)) for p in programs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
        assert not caller.is_alive()
    for x in arrays:
        np.testing.assert_array_equal(x, np.float32(2.0**100))


def test_pools_come_and_go() -> None:
    for _ in range(50):
        x = np.ones(512, np.float32)
        program = doubling(_native.ThreadPool(3), x, 1)  # the program alone keeps the pool
        program.run(0, 1)
        assert x[0] == 2.0


def test_a_forked_child_ends_and_is_told() -> None:
    program = doubling(_native.ThreadPool(2), np.ones(8, np.float32), 1)
    program.run(0, 1)
    child = os.fork()
    if child == 0:
        try:
            program.run(0, 1)
        except RuntimeError:
            del program
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert program.run(0, 1) == 0


def test_affinity_takes_allowed_processors_only() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    cpus = [allowed[0], allowed[-1]]
    x = np.ones(512, np.float32)
    doubling(_native.ThreadPool(2, cpus), x, 1).run(0, 1)
    assert x[-1] == 2.0
    with pytest.raises(ValueError, match=r"bind thread 1 to processor 100000"):
        _native.ThreadPool(2, [allowed[0], 100_000])
    with pytest.raises(ValueError, match=r"pool of 2 threads needs as many processors, given 1"):
        _native.ThreadPool(2, [0])


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_thread_counts_are_checked(threads: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 1024 threads, given {threads}"):
        _native.ThreadPool(threads)


def test_records_are_checked() -> None:
    program = _native.Program(_native.ThreadPool(1))
    with pytest.raises(ValueError, match="no kernel is named 'rms_morn'"):
        program.add("rms_morn", [], [], [])
    with pytest.raises(ValueError, match="kernel 'rms_norm' takes 4 pointers, given 3"):
        program.add("rms_norm", [0, 0, 0], [1, 1], [1.0])
    with pytest.raises(ValueError, match="kernel 'rms_norm' takes 2 dims, given 1"):
        program.add("rms_norm", [0] * 4, [1], [1.0])
    with pytest.raises(ValueError, match="kernel 'rms_norm' takes 1 scalars, given 0"):
        program.add("rms_norm", [0] * 4, [1, 1], [])
    assert len(program) == 0
    for begin, end in [(0, 1), (-1, 0), (1, 0)]:
        with pytest.raises(IndexError, match=f"records {begin} to {end} of a program of 0"):
            program.run(begin, end)


def test_faults_are_those_of_the_last_run() -> None:
    x, index = np.ones((2, 4), np.float32), np.array([-1], np.int32)
    program = _native.Program(_native.ThreadPool(2))
    arrays = (ONE_ROW, index, x, np.zeros((1, 4), np.float32))
    program.add("gather_rows", [a.ctypes.data for a in arrays], [4], [])
    assert program.run(0, 1) == _native.FAULT_RANGE
    index[0] = 1
    assert program.run(0, 1) == 0


def test_arena_is_aligned_zeroed_memory() -> None:
    for huge, alignment in [(False, 4096), (True, 2 << 20)]:
        arena = _native.Arena(3 << 20, huge)
        assert arena.nbytes == 3 << 20
        assert arena.address % alignment == 0
        out, live = np.empty((1, 3 << 18), np.float32), np.array([0], np.int32)
        program = _native.Program(_native.ThreadPool(1))
        program.add(
            "gather_rows",
            [ONE_ROW.ctypes.data, live.ctypes.data, arena.address, out.ctypes.data],
            [out.size],
            [],
        )
        program.run(0, 1)
        assert not out.any()
    with pytest.raises(MemoryError):
        _native.Arena(1 << 62)


class Environment:
    """The floating-point environment of this thread (x86-64 Linux: fenv_t with MXCSR in its last 4 bytes)."""

    LIBRARY = ctypes.CDLL(ctypes.util.find_library("m"))

    def read(self) -> int:
        self.saved = ctypes.create_string_buffer(32)
        assert self.LIBRARY.fegetenv(self.saved) == 0
        return int.from_bytes(self.saved.raw[28:], "little")

    def write(self, mxcsr: int) -> None:
        self.read()
        changed = self.saved.raw[:28] + mxcsr.to_bytes(4, "little")
        assert self.LIBRARY.fesetenv(ctypes.create_string_buffer(changed, 32)) == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is x86's")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_callers_float_mode_is_neither_used_nor_changed(threads: int) -> None:
    """Flush-to-zero and rounding up, as other libraries may leave them, where threads are made and where they run."""
    x, third = np.full(4096, 1e-39, np.float32), np.full(4096, 1 / 3, np.float32)
    environment, flushing_up = Environment(), 0x1F80 | 0x8040 | 0x4000
    before = environment.read()
    environment.write(flushing_up)
    try:
        pool = _native.ThreadPool(threads)
        doubling(pool, x, 1).run(0, 1)
        program = _native.Program(pool)
        program.add("scale", [ONE_ROW.ctypes.data, third.ctypes.data, third.ctypes.data], [third.size], [0.1])
        program.run(0, 1)
        after = environment.read()
    finally:
        environment.write(before)
    assert after & 0xFFC0 == flushing_up & 0xFFC0
    assert (x == np.float32(1e-39) * np.float32(2)).all()
    assert (third == np.float32(1 / 3) * np.float32(0.1)).all()
