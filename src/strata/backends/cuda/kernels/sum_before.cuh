// A running sum over the threads of a thread block.
#pragma once

#include "device.cuh"

namespace strata {

// Sum over the threads before this one; `total` becomes that of all. Shared memory: one int a warp.
__device__ __forceinline__ int sum_before(int value, int* warps, int& total) {
  int sum = value;
#pragma unroll
  for (int half = 1; half < 32; half *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, half);
    if (lane_id() >= half) sum += other;
  }
  __syncthreads();
  if (lane_id() == 31) warps[warp_id()] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / 32; ++w) {
    if (w < warp_id()) before += warps[w];
    total += warps[w];
  }
  return before + sum - value;
}

}  // namespace strata
