// linear_few: products of a chunk's many float rows with a few float weight rows [n, k]; lane dots as the step form's, so that they have its
// bits. A warp takes some rows and all n: x comes once from memory, weights from the cache. Macros: STRATA_TYPE, STRATA_OUTPUTS (n),
// STRATA_ROWS (of a warp).
#include "row_chain.cuh"
#include "step.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
constexpr int N = STRATA_OUTPUTS, R = STRATA_ROWS;
constexpr int kAhead = R == 1 ? 16 : 8;  // steps of 32 values whose x is on its way

}  // namespace

extern "C" __global__ void __launch_bounds__(256) linear_few(const int* live, const float* x, const uint8_t* w, float* y, int k) {
  dependency_launch();
  dependency_wait();
  const int row0 = (blockIdx.x * (blockDim.x / 32) + warp_id()) * R, rows = min(*live - row0, R);
  if (rows <= 0) return;
  const float* in[R];
#pragma unroll
  for (int r = 0; r < R; ++r) in[r] = x + static_cast<size_t>(row0 + min(r, rows - 1)) * k;
  float sum[R][N] = {}, next[kAhead][R];
  const auto load = [&](float (&v)[R], int i) {
#pragma unroll
    for (int r = 0; r < R; ++r) v[r] = in[r][i];
  };
  const auto add = [&](const float (&v)[R], int i) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float weight = one_value<T>(w + (static_cast<size_t>(n) * k + i) * Layout<T>::bytes);
#pragma unroll
      for (int r = 0; r < R; ++r) sum[r][n] = fma32(weight, v[r], sum[r][n]);
    }
  };
  const int whole = k / (32 * kAhead) * (32 * kAhead);
  if (whole > 0)
#pragma unroll
    for (int j = 0; j < kAhead; ++j) load(next[j], lane_id() + 32 * j);
#pragma unroll 1
  for (int from = lane_id(); from < whole; from += 32 * kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = from + 32 * j;
      add(next[j], i);
      if (from + 32 * kAhead < whole) load(next[j], i + 32 * kAhead);
    }
  }
  for (int i = whole + lane_id(); i < k; i += 32) {
    float v[R];
    load(v, i), add(v, i);
  }
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float total = warp_tree_sum(sum[r][n]);
      if (lane_id() == 0 && r < rows) y[static_cast<size_t>(row0 + r) * N + n] = total;
    }
}
