// linear_f: y[m][row] for float weights [n, k] of one type and float rows, 32 lanes over k and the tree; up to three matrices of the
// same rows in one launch. Macros: STRATA_TYPE, STRATA_ROWS (M). Eight threads take a weight row: thread j holds lanes 4 j .. 4 j + 3
// of every 32 values. `whole`: steps of 32 values that may be read four at a time. grid.x: thread blocks of matrix 0, of matrix 1,
// of matrix 2; grid.y: groups of M rows.
#include "lanes.cuh"
#include "matrices.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
constexpr int M = STRATA_ROWS, kAhead = M <= 2 ? (T == QuantType::F32 ? 8 : 16) : 4;
constexpr int kStage = 8192 / M / 32 * 32;  // values of a row in shared memory at a time

// Steps [first, end) of 32 values; x: the rows' values from step `first` on, kStage apart.
__device__ __forceinline__ void steps(Four<T> (&next)[kAhead], const uint8_t* weights, const float* x, int first, int end, int whole,
                                      float (&acc)[M][4]) {
#pragma unroll 1
  for (int i0 = first; i0 < end; i0 += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i0 + i >= end) break;
      float v[4];
      next[i].floats(v);
      if (i0 + kAhead + i < whole) next[i].load(weights + static_cast<size_t>(32 * (i0 + kAhead + i)) * Layout<T>::bytes);
#pragma unroll
      for (int m = 0; m < M; ++m) fma4(v, x + m * kStage + 32 * (i0 + i - first), acc[m]);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) linear_f(const int* live, const float* x, const uint8_t* w0, float* y0, int n0,
                                                           const uint8_t* w1, float* y1, int n1, const uint8_t* w2, float* y2, int n2,
                                                           int k, int whole) {
  STRATA_DYNAMIC_SHARED(shared);
  float* staged = reinterpret_cast<float*>(shared);  // [M][kStage]
  const int each = blockDim.x / 8;
  const auto [w, y, n, block] = matrix_of_block(each, w0, y0, n0, w1, y1, n1, w2, y2, n2);
  const int row = block * each + threadIdx.x / 8, j = threadIdx.x % 8;
  const uint8_t* weights = w + (static_cast<size_t>(min(row, n - 1)) * k + 4 * j) * Layout<T>::bytes;
  Four<T> next[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i)
    if (i < whole) next[i].load(weights + static_cast<size_t>(32 * i) * Layout<T>::bytes);
  dependency_launch();
  dependency_wait();
  const int row0 = blockIdx.y * M, rows = min(*live - row0, M);
  if (rows <= 0) return;
  const float* in = x + static_cast<size_t>(row0) * k;
  float acc[M][4] = {};
  for (int begin = 0; begin < 32 * whole; begin += kStage) {
    const int count = min(kStage, 32 * whole - begin);
    if (begin > 0) __syncthreads();
    for (int m = 0; m < M; ++m)
#pragma unroll 4
      for (int i = 4 * threadIdx.x; i < count; i += 4 * blockDim.x) {
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if (m < rows) v = *reinterpret_cast<const float4*>(in + static_cast<size_t>(m) * k + begin + i);
        *reinterpret_cast<float4*>(staged + m * kStage + i) = v;
      }
    __syncthreads();
    steps(next, weights, staged + 4 * j, begin / 32, (begin + count) / 32, whole, acc);
  }
  for (int at = 32 * whole; at + 4 * j < k; at += 32)  // what is left, value by value
    for (int e = 0; e < 4 && at + 4 * j + e < k; ++e) {
      const float v = one_value<T>(weights + static_cast<size_t>(at + e) * Layout<T>::bytes);
#pragma unroll
      for (int m = 0; m < M; ++m)
        if (m < rows) acc[m][e] = fma32(v, in[static_cast<size_t>(m) * k + at + 4 * j + e], acc[m][e]);
    }
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const float total = octet_tree_sum(acc[m]);
    if (j == 0 && m < rows && row < n) y[static_cast<size_t>(row0 + m) * n + row] = total;
  }
}
