// linear_f: y[m][row] for a float weight [n, k] and float rows, 32 lanes over k and the tree. Macros: STRATA_TYPE,
// STRATA_ROWS (M). Four threads take a weight row: thread j holds lanes 8 j .. 8 j + 7 of every 32 values, so that it loads
// 16 bytes at a time. `whole`: steps of 32 values that may be read so. grid.y: groups of M rows.
#include "lanes.cuh"
#include "op.cuh"

using namespace strata;

extern "C" __global__ void __launch_bounds__(256) linear_f(const int* live, const float* x, const uint8_t* w, float* y, int k, int n,
                                                           int whole) {
  constexpr QuantType T = STRATA_TYPE;
  constexpr int M = STRATA_ROWS, ahead = 4;
  const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 4, j = threadIdx.x % 4;
  const uint8_t* weights = w + (static_cast<size_t>(min(row, n - 1)) * k + 8 * j) * Layout<T>::bytes;
  Eight<T> next[ahead];
#pragma unroll
  for (int i = 0; i < ahead; ++i)
    if (i < whole) next[i].load(weights + static_cast<size_t>(32 * i) * Layout<T>::bytes);
  dependency_launch();
  dependency_wait();
  const int row0 = blockIdx.y * M, rows = min(*live - row0, M);
  if (rows <= 0) return;
  const float* in = x + static_cast<size_t>(row0) * k + 8 * j;
  float acc[M][8] = {};
#pragma unroll 1
  for (int i0 = 0; i0 < whole; i0 += ahead) {
    Eight<T> now[ahead];
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      now[i] = next[i];
      if (i0 + ahead + i < whole) next[i].load(weights + static_cast<size_t>(32 * (i0 + ahead + i)) * Layout<T>::bytes);
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i) {
      if (i0 + i >= whole) break;
      float v[8];
      now[i].floats(v);
#pragma unroll
      for (int m = 0; m < M; ++m)
        if (m < rows) fma8(v, in + static_cast<size_t>(m) * k + 32 * (i0 + i), acc[m]);
    }
  }
  for (int at = 32 * whole; at + 8 * j < k; at += 32)  // what is left, value by value
    for (int e = 0; e < 8 && at + 8 * j + e < k; ++e) {
      const float v = one_value<T>(weights + static_cast<size_t>(at + e) * Layout<T>::bytes);
#pragma unroll
      for (int m = 0; m < M; ++m)
        if (m < rows) acc[m][e] = fma32(v, in[static_cast<size_t>(m) * k + at + e], acc[m][e]);
    }
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const float total = quad_tree_sum(acc[m]);
    if (j == 0 && m < rows && row < n) y[static_cast<size_t>(row0 + m) * n + row] = total;
  }
}
