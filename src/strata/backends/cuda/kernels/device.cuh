// What every kernel uses: warp sums in the contract's order, int8 products.
#pragma once

#include "strata/contract.h"

#if defined(STRATA_EMULATED)
#include "emulated_ptx.h"  // tests/emulate
#else
#include "ptx.cuh"
#define STRATA_ARCH __CUDA_ARCH__  // the emulated device gets it as an option
#endif

namespace strata {

constexpr unsigned kFullWarp = 0xffffffffu;

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) & 31; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) >> 5; }

// tree_sum over a warp whose lane l holds lane l; every lane gets the sum (float addition commutes).
__device__ __forceinline__ float warp_tree_sum(float x) {
#pragma unroll
  for (int half = kLanes / 2; half > 0; half /= 2) x = x + __shfl_xor_sync(kFullWarp, x, half);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int half = 16; half > 0; half /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, half));
  return x;
}

__device__ __forceinline__ int dot4(uint32_t a, uint32_t b, int c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}

__device__ __forceinline__ uint32_t dot4_unsigned(uint32_t a, uint32_t b, uint32_t c) { return __dp4a(a, b, c); }

// y[token][row] of the four results that a thread has of an mma tile: rows 0 and 8 of tokens 0 and 1.
__device__ __forceinline__ void store_results(float* y, int n, int tokens, int row, int token, const float4& v) {
  float* at = y + static_cast<int64_t>(token) * n + row;
  const bool low = token < tokens, high = token + 1 < tokens;
  if (row < n && low) at[0] = v.x;
  if (row < n && high) at[n] = v.y;
  if (row + 8 < n && low) at[8] = v.z;
  if (row + 8 < n && high) at[n + 8] = v.w;
}

}  // namespace strata
