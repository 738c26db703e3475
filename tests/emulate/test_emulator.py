"""The emulated device computes what kernels say and catches what a GPU would let pass: each fault is planted here."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from emulator import ENFORCE, WATCH, Call, EmulatedFault, Memory, Module, check_memory, launch

SOURCE = r"""
#include "step.cuh"
using namespace strata;
extern "C" {
__global__ void add_one(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] += 1.0f;
}
__global__ void past_the_end(float* x, int n) { x[n + threadIdx.x] = 1.0f; }
__global__ void read_past(const float* x, int n, float* y) { y[threadIdx.x] = x[n + 16 + threadIdx.x]; }
__global__ void before_the_start(float* x) { x[-1 - static_cast<int>(threadIdx.x)] = 1.0f; }
__global__ void misaligned(const float* x, float* y) { y[threadIdx.x] = reinterpret_cast<const float4*>(x + 1)[0].x; }
__global__ void wide_index(float* y, int i) {
  __shared__ float s[32];
  s[threadIdx.x + i] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void dynamic_past(float* y, int i) {
  STRATA_DYNAMIC_SHARED(shared);
  reinterpret_cast<float*>(shared)[threadIdx.x + i] = 1.0f;
  y[threadIdx.x] = 1.0f;
}
// Thread t of the result needs what thread 255 - t wrote.
__global__ void reverse(const float* x, float* y, int barrier) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  if (barrier) __syncthreads();
  y[threadIdx.x] = s[255 - threadIdx.x];
}
__global__ void reverse_warp(const float* x, float* y, int barrier) {
  __shared__ float s[32];
  s[threadIdx.x] = x[threadIdx.x];
  if (barrier) __syncwarp();
  y[threadIdx.x] = s[31 - threadIdx.x];
}
// One warp hands 8 rows to another through one place in shared memory. Wrong: 1 nothing arrives, 2 the place is given
// back before it was read, 3 before all lanes have read it.
__global__ void hand_over(const float* x, float* y, int wrong) {
  __shared__ Barrier full, empty;
  __shared__ float place[32];
  const int lane = lane_id();
  if (threadIdx.x == 0) full.init(32), empty.init(1);
  __syncthreads();
  for (int i = 0; i < 8; ++i) {
    if (warp_id() == 1) {
      empty.wait(i % 2 ^ 1);
      place[lane] = x[32 * i + lane];
      if (wrong != 1) full.arrive();
      continue;
    }
    full.wait(i % 2);
    if (wrong == 2 && lane == 0) empty.arrive();
    y[32 * i + lane] = place[31 - lane];
    if (wrong == 2) continue;
    if (wrong != 3) __syncwarp();
    if (lane == 0) empty.arrive();
  }
}
__global__ void unwritten(float* y) {
  __shared__ float s[64];
  if (threadIdx.x < 31) s[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void half_barrier(float* y) {
  if (threadIdx.x < 32) __syncwarp();
  if (threadIdx.x < 40) y[0] = warp_tree_sum(1.0f);
}
__global__ void different_operations(float* y) {
  y[threadIdx.x] = threadIdx.x & 1 ? __shfl_xor_sync(kFullWarp, 1.0f, 1) : __shfl_xor_sync(kFullWarp, 1, 1);
}
__global__ void last_block(float* part, uint32_t* arrived, float* y) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    part[blockIdx.x] = static_cast<float>(blockIdx.x);
    __threadfence();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  float sum = 0.0f;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += 32) sum += part[i];
  sum = warp_tree_sum(sum);
  if (threadIdx.x == 0) *y = sum, *arrived = 0;
}
__global__ void order_of_blocks(float* y) { *y = static_cast<float>(blockIdx.x); }
__global__ void waits(const float* weight, const float* x, float* y) {
  const float w = weight[threadIdx.x];
  dependency_wait();
  y[threadIdx.x] = w * x[threadIdx.x];
}
__global__ void reads_too_early(const float* weight, const float* x, float* y) {
  const float early = x[threadIdx.x];
  dependency_wait();
  y[threadIdx.x] = weight[threadIdx.x] * early;
}
__global__ void never_waits(const float* weight, float* y) { if (weight[0] == -1.0f) y[0] = 0.0f; }
}
"""
SEEDS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def module() -> Module:
    return Module(SOURCE)


def test_values_and_indices(module: Module) -> None:
    x = Memory(4 * 1000).put(np.arange(1000, dtype=np.float32))
    launch(module.kernel("add_one"), (4,), (256,), [x.arg, ctypes.c_int(1000)])
    assert (x.get((1000,), np.float32) == np.arange(1, 1001)).all()
    check_memory()


Fault = Callable[[Memory, Memory], list[Any]]
FAULTS: dict[str, tuple[Fault, int, str]] = {
    "past_the_end": (lambda x, y: [x.arg, ctypes.c_int(64)], 32, "byte 256 of an allocation of 256"),
    "read_past": (lambda x, y: [x.arg, ctypes.c_int(64), y.arg], 32, "byte 320 of an allocation of 256"),
    "misaligned": (lambda x, y: [x.arg, y.arg], 32, "misaligned"),
    "wide_index": (lambda x, y: [y.arg, ctypes.c_int(1)], 32, "index outside its array"),
    "half_barrier": (lambda x, y: [y.arg], 64, "do not reach"),
    "different_operations": (lambda x, y: [y.arg], 32, "different warp operations"),
    "dynamic_past": (lambda x, y: [y.arg, ctypes.c_int(1)], 32, "past 128 of dynamic shared memory"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_ends_the_launch(module: Module, name: str) -> None:
    args, threads, words = FAULTS[name]
    x, y = Memory(256), Memory(256)
    with pytest.raises(EmulatedFault, match=words):
        launch(module.kernel(name), (1,), (threads,), args(x, y), 128)
    launch(module.kernel("add_one"), (1,), (32,), [x.arg, ctypes.c_int(32)])  # the device goes on
    x.free(), y.free()


def test_write_before_an_allocation_is_found(module: Module) -> None:
    x = Memory(100)
    launch(module.kernel("before_the_start"), (1,), (1,), [x.arg])
    with pytest.raises(EmulatedFault, match="byte -4 of an allocation of 100"):
        check_memory()
    x.free()
    check_memory()


@pytest.mark.parametrize("name", ["reverse", "reverse_warp"])
def test_missing_barrier_changes_bits(module: Module, name: str) -> None:
    n = 256 if name == "reverse" else 32
    values = np.arange(n, dtype=np.float32)
    x = Memory(4 * n).put(values)

    def runs(barrier: int) -> list[bool]:
        result = []
        for seed in SEEDS:
            y = Memory(4 * n)
            launch(module.kernel(name), (1,), (n,), [x.arg, y.arg, ctypes.c_int(barrier)], seed=seed)
            result.append(bool((y.get((n,), np.float32) == values[::-1]).all()))
        return result

    assert all(runs(1))
    assert not any(runs(0))


def test_places_that_are_handed_over(module: Module) -> None:
    values = np.arange(256, dtype=np.float32)
    x, want = Memory(4 * 256).put(values), values.reshape(8, 32)[:, ::-1]

    def right(wrong: int, seed: int) -> bool:
        y = Memory(4 * 256)
        launch(module.kernel("hand_over"), (1,), (64,), [x.arg, y.arg, ctypes.c_int(wrong)], seed=seed)
        return bool((y.get((8, 32), np.float32) == want).all())

    seeds = range(2, 12)
    assert all(right(0, seed) for seed in (0, 1, *seeds))
    with pytest.raises(EmulatedFault, match="do not reach"):
        right(1, 0)
    for early in (2, 3):
        assert not all(right(early, seed) for seed in seeds)


def test_unwritten_shared_memory_is_not_zero(module: Module) -> None:
    y = Memory(4 * 64)
    launch(module.kernel("unwritten"), (1,), (64,), [y.arg])
    got = y.get((64,), np.float32)
    assert (got[:31] == 1).all()
    assert np.isnan(got[31:]).all()


def test_last_block_and_order(module: Module) -> None:
    part, arrived, y = Memory(4 * 100), Memory(4).put(np.zeros(1, np.uint32)), Memory(4)
    for seed in SEEDS:
        launch(module.kernel("last_block"), (100,), (32,), [part.arg, arrived.arg, y.arg], seed=seed)
        assert y.get((1,), np.float32)[0] == 4950
    seen = set()
    for seed in SEEDS:
        launch(module.kernel("order_of_blocks"), (50,), (1,), [y.arg], seed=seed)
        seen.add(float(y.get((1,), np.float32)[0]))
    assert len(seen) > 2


def test_reads_before_the_wait_are_seen(module: Module) -> None:
    weight, x, y = (Memory(128).put(np.ones(32, np.float32)) for _ in range(3))
    add = Call(
        module.kernel("add_one"), (1,), (32,), [(x, _at(x)), (c := ctypes.c_int(32), ctypes.addressof(c))], 0
    )
    args = [(m, _at(m)) for m in (weight, x, y)]
    good, early = (Call(module.kernel(n), (1,), (32,), args, 0) for n in ("waits", "reads_too_early"))
    never = Call(module.kernel("never_waits"), (1,), (32,), [args[0], args[2]], 0)
    for call in (add, good):
        call.run(watch=WATCH)
    good.run(watch=ENFORCE)
    assert (y.get((32,), np.float32) == 2).all()
    with pytest.raises(EmulatedFault, match="before dependency_wait"):
        early.run(watch=ENFORCE)
    with pytest.raises(EmulatedFault, match="no thread of a block waits"):
        never.run(watch=ENFORCE)


_held = []


def _at(memory: Memory) -> int:
    _held.append(memory.arg)
    return ctypes.addressof(_held[-1])
