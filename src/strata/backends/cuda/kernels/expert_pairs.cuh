// Which pairs of an expert a thread block of a prompt chunk has, and where the results of down go.
#pragma once

#include "device.cuh"

namespace strata {

struct Pairs {
  int expert, first, count;
};
__device__ __forceinline__ Pairs pairs_of_tile(const int* tiles) {  // [0]: how many, then expert, first pair in order of experts, pairs of each
  const int i = blockIdx.y;
  if (i >= tiles[0]) return {0, 0, 0};
  return {tiles[3 * i + 1], tiles[3 * i + 2], tiles[3 * i + 3]};
}

// Rows `row` and row + 8 (z, w) of pairs `token` and token + 1, times the expert's scale.
__device__ __forceinline__ void put_down(float* out, int n, const int* pairs, int count, int row, int token, const float4& v, float scale) {
  const bool low = row < n, high = row + 8 < n;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (token + i >= count) break;
    float* at = out + static_cast<size_t>(pairs[token + i]) * n + row;
    if (low) at[0] = (i ? v.y : v.x) * scale;
    if (high) at[8] = (i ? v.w : v.z) * scale;
  }
}

}  // namespace strata
