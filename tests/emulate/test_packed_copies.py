"""Copies of a grid side by side decode what the grid does, on the emulated device."""

import numpy as np
import pytest
from emulator import Memory, Module, check_memory, launch

BLOCKS = 4096
SOURCE = """
#include "packed_copies.cuh"
using namespace strata;
template <class P> __device__ void decode(const uint32_t* blocks, uint32_t* out) {
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  P::template fill<1>(table);
  __syncthreads();
  for (int i = threadIdx.x; i < BLOCKS; i += blockDim.x) {
    const uint32_t* b = blocks + 4 * i;
    const typename P::Raw raw{make_uint2(b[0], b[1]), b[2], b[3] & 0xffffu};
    P::template decode<1>(raw, table, out + 9 * i);
    out[9 * i + 8] = __float_as_uint(P::scales(raw).w0);
  }
}
#define KERNEL(name, plane) \\
  extern "C" __global__ void name(const uint32_t* blocks, uint32_t* out) { decode<plane>(blocks, out); }
KERNEL(grid, Packed<QuantType::IQ3_XXS>)
KERNEL(copies4, CopiedIq3Xxs<4>)
KERNEL(copies16, CopiedIq3Xxs<16>)
KERNEL(copies32, CopiedIq3Xxs<32>)
""".replace("BLOCKS", str(BLOCKS))


@pytest.fixture(scope="module")
def decoded():
    module = Module(SOURCE)
    blocks = np.random.default_rng(1).integers(0, 1 << 32, (BLOCKS, 4), np.uint32)
    blocks[:128, 2] = np.arange(128)  # every pattern of signs
    blocks[:, 3] = np.random.default_rng(2).standard_normal(BLOCKS).astype(np.float16).view(np.uint16)

    def run(kernel, seed=0):
        given, out = Memory(blocks.nbytes).put(blocks), Memory(BLOCKS * 36)
        launch(module.kernel(kernel), (1,), (96,), [given.arg, out.arg], 32 << 10, seed)
        check_memory()
        return out.get((BLOCKS, 9), np.uint32)

    return run


@pytest.mark.parametrize("copies", [4, 16, 32])
def test_codes_and_scales(copies, decoded):
    want = decoded("grid")
    assert len(np.unique(want)) > BLOCKS
    for seed in (0, 1, 2):
        assert np.array_equal(decoded(f"copies{copies}", seed), want)
