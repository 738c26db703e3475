// What the machine gives at best: reading device memory.
#pragma once

#include "device.cuh"

namespace strata {

__device__ __forceinline__ void read_all(const uint4* p, size_t count, uint32_t* sink) {
  uint4 x = make_uint4(0, 0, 0, 0);
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 v = __ldg(p + i + j * step);
      x.x ^= v.x, x.y ^= v.y, x.z ^= v.z, x.w ^= v.w;
    }
  }
  if ((x.x ^ x.y ^ x.z ^ x.w) == 0x12345678u) *sink = 1;
}

}  // namespace strata
