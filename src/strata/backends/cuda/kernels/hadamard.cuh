// Turning groups of values before 4-bit cells round them (ops/hadamard.py), by one warp.
#pragma once

#include "device.cuh"

namespace strata {

// One stage: values `half` lanes apart become their sum (lower lane) and difference.
__device__ __forceinline__ float turn_stage(float mine, int half) {
  const float other = __shfl_xor_sync(kFullWarp, mine, half);
  return lane_id() & half ? other - mine : mine + other;
}

// Groups of `group` values (a power of two up to 64) of x [n] to `out`, which may be x; n: whole groups.
__device__ __forceinline__ void turn_groups(const float* x, int n, int group, float factor, float* out) {
  if (group == 64) {
    for (int g = lane_id(); g < n; g += 64) {
      float a = x[g], b = x[g + 32];
#pragma unroll
      for (int half = 1; half < 32; half *= 2) a = turn_stage(a, half), b = turn_stage(b, half);
      out[g] = (a + b) * factor, out[g + 32] = (a - b) * factor;
    }
  } else {
    for (int g = 0; g < n; g += 32) {
      const int i = g + lane_id();
      float a = i < n ? x[i] : 0.0f;
      for (int half = 1; half < group; half *= 2) a = turn_stage(a, half);
      if (i < n) out[i] = a * factor;
    }
  }
  __syncwarp();
}

// float32(group^-1/2) of groups that cells have.
__device__ __forceinline__ constexpr float turn_factor(int group) {
  return group == 64 ? 0.125f : group == 32 ? 0.17677669529663687f : group == 16 ? 0.25f : group == 8 ? 0.35355339059327373f
       : group == 4  ? 0.5f   : group == 2  ? 0.70710678118654757f : 1.0f;
}

}  // namespace strata
