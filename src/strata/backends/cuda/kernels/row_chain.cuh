// Lane dots of a float weight row by one warp, a lane a contract lane: for few rows of many values, where four threads a row
// (lanes.cuh) would leave the device idle.
#pragma once

#include "lanes.cuh"

namespace strata {

// The lane dot of a row with x, both in shared memory; in every lane.
template <QuantType T> __device__ __forceinline__ float lane_dot(const uint8_t* w, const float* x, int k) {
  float sum = 0.0f;
#pragma unroll 16
  for (int i = lane_id(); i < k; i += 32) sum = fma32(one_value<T>(w + i * Layout<T>::bytes), x[i], sum);
  return warp_tree_sum(sum);
}

// The lane dots of a row in shared memory with up to M rows of x, `stride` apart in device memory; in every lane. Sums of rows from `rows`
// on are those of the last.
template <QuantType T, int M>
__device__ __forceinline__ void lane_dots(const uint8_t* w, const float* x, size_t stride, int rows, int k, float (&sum)[M]) {
  constexpr int ahead = 32 / M < 4 ? 4 : 32 / M;  // steps whose values are on their way together
#pragma unroll
  for (int m = 0; m < M; ++m) sum[m] = 0.0f;
#pragma unroll ahead
  for (int i = lane_id(); i < k; i += 32) {
    const float value = one_value<T>(w + i * Layout<T>::bytes);
#pragma unroll
    for (int m = 0; m < M; ++m) sum[m] = fma32(value, x[min(m, rows - 1) * stride + i], sum[m]);
  }
#pragma unroll
  for (int m = 0; m < M; ++m) sum[m] = warp_tree_sum(sum[m]);
}

// A warp's weight row of k values against up to M rows; the first `Ahead` values of each lane may be loaded early.
template <QuantType T, int M, int Ahead> struct RowChain {
  const uint8_t* w;
  int k;
  float first[Ahead];

  __device__ __forceinline__ RowChain(const uint8_t* row, int values) : w(row), k(values) {}
  __device__ __forceinline__ void load_first() {
#pragma unroll
    for (int i = 0; i < Ahead; ++i) {
      const int at = 32 * i + lane_id();
      first[i] = at < k ? one_value<T>(w + static_cast<size_t>(at) * Layout<T>::bytes) : 0.0f;
    }
  }

  // sum[m] = lane dot with row m < rows of x, rows `stride` apart; in every lane.
  __device__ __forceinline__ void run(const float* x, size_t stride, int rows, float (&sum)[M]) {
#pragma unroll
    for (int m = 0; m < M; ++m) sum[m] = 0.0f;
#pragma unroll 1
    for (int from = 0; from < k; from += 32 * Ahead) {
#pragma unroll
      for (int i = 0; i < Ahead; ++i) {
        const int at = from + 32 * i + lane_id(), next = at + 32 * Ahead;
        if (at >= k) break;
        const float value = first[i];
        if (next < k) first[i] = one_value<T>(w + static_cast<size_t>(next) * Layout<T>::bytes);
#pragma unroll
        for (int m = 0; m < M; ++m)
          if (m < rows) sum[m] = fma32(value, x[m * stride + at], sum[m]);
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) sum[m] = warp_tree_sum(sum[m]);
  }
};

}  // namespace strata
