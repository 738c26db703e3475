// Weights of later kernels, asked for while this one waits.
#pragma once

#include "device.cuh"

namespace strata {

// Every thread block asks for its share of `bytes` (a multiple of 16) at `at`, which is on a border of 16.
__device__ __forceinline__ void ask_ahead(const uint8_t* at, uint32_t bytes) {
  constexpr uint32_t kLine = 128;
  const uint32_t blocks = gridDim.x * gridDim.y * gridDim.z, block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const uint32_t each = ((bytes + blocks - 1) / blocks + kLine - 1) / kLine * kLine, begin = block * each;
  if (begin >= bytes) return;
  fetch_to_cache(at + begin, bytes - begin < each ? bytes - begin : each);
}

}  // namespace strata
