// wide_float: y[token][row] for f16 weights and rows that are sums of two f16 (split_rows.cu), on tensor cores. Sums of 256 values are
// taken by the tensor cores and added in float: a row's result depends on K alone.
//
// Macros: STRATA_WEIGHT_TERMS (2: weights are sums of two as well; their low parts times low parts are left out), STRATA_ROW_GROUPS,
// STRATA_PARTS (64 tokens each), STRATA_STAGES. Grid: tiles of rows x tiles of tokens, which are those from `first` of the step's on.
// scales, row_scales (null: 1): powers of two that products are multiplied by, a token and a row.
#include "op.cuh"

using namespace strata;

namespace {

constexpr int Terms = STRATA_WEIGHT_TERMS, Parts = STRATA_PARTS, Stages = STRATA_STAGES;
constexpr int kThreads = 128 * STRATA_ROW_GROUPS, kRows = 64 * STRATA_ROW_GROUPS, kTokens = 64 * Parts;
constexpr int kLine = 128;  // bytes of 64 values
constexpr int kStageBytes = (Terms * kRows + 2 * kTokens) * kLine;

// Lines of 64 values from value 64 * i on, parts of 16 bytes at part ^ line % 8; zeros beyond k and the last line's copy beyond `lines`.
template <int Lines> __device__ __forceinline__ void copy_lines(uint8_t* to, const uint16_t* from, int first, int lines, int i, int pitch, int k) {
#pragma unroll
  for (int u = threadIdx.x; u < Lines * 8; u += kThreads) {
    const int line = u / 8, part = u % 8, at = 64 * i + 8 * part;
    uint8_t* target = to + line * kLine + (part ^ line % 8) * 16;
    if (at < k) {
      copy_async<16>(target, from + static_cast<int64_t>(min(first + line, lines - 1)) * pitch + at);
    } else {
      *reinterpret_cast<uint4*>(target) = make_uint4(0, 0, 0, 0);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kThreads == 128 ? 2 : 1)
    wide_float(const int* live, const uint16_t* high, const uint16_t* low, const uint16_t* x_high, const uint16_t* x_low, const float* scales,
               const float* row_scales, float* y, int n, int tokens, int first, int k, int pitch) {
  STRATA_DYNAMIC_SHARED(shared);
  dependency_wait();
  dependency_launch();
  const int across = (n + kRows - 1) / kRows, row0 = static_cast<int>(blockIdx.x) % across * kRows;
  const int token0 = static_cast<int>(blockIdx.x) / across * kTokens, count = *live - first;
  if (token0 >= count) return;
  uint8_t* base = shared + (1024 - shared_offset(shared) % 1024) % 1024;
  const int stages = (k + 63) / 64, padded = 64 * stages;
  const auto stage = [&](int i) { return base + i % Stages * kStageBytes; };
  const auto copy = [&](int i) {
    uint8_t* to = stage(i);
    copy_lines<kTokens>(to, x_high, token0, tokens, i, padded, padded);
    copy_lines<kTokens>(to + kTokens * kLine, x_low, token0, tokens, i, padded, padded);
    copy_lines<kRows>(to + 2 * kTokens * kLine, high, row0, n, i, pitch, k);
    if constexpr (Terms == 2) copy_lines<kRows>(to + (2 * kTokens + kRows) * kLine, low, row0, n, i, pitch, k);
  };
#pragma unroll
  for (int i = 0; i < Stages - 1; ++i) {
    if (i < stages) copy(i);
    copies_group();
  }
  float c[Parts][32], total[Parts][32];
#pragma unroll
  for (int part = 0; part < Parts; ++part)
#pragma unroll
    for (int i = 0; i < 32; ++i) c[part][i] = 0.0f, total[part][i] = 0.0f;
  const int lane = lane_id(), line = warp_id() * 16 + lane % 16;  // of weights
#pragma unroll 1
  for (int i = 0; i < stages; ++i) {
    copies_wait_for_groups<Stages - 2>();
    publish_shared();
    __syncthreads();
    if (i + Stages - 1 < stages) copy(i + Stages - 1);
    copies_group();
    const uint8_t *x = stage(i), *w = x + 2 * kTokens * kLine + line * kLine;
    uint32_t a[Terms][4][4];
#pragma unroll
    for (int e = 0; e < Terms; ++e)
#pragma unroll
      for (int slice = 0; slice < 4; ++slice) load_matrices(a[e][slice], w + e * kRows * kLine + ((2 * slice + lane / 16) ^ line % 8) * 16);
    products_fence();
#pragma unroll
    for (int slice = 0; slice < 4; ++slice)
#pragma unroll
      for (int part = 0; part < Parts; ++part) {
        const uint8_t* columns = x + part * 64 * kLine;
        group_product(c[part], a[0][slice], columns, slice, slice > 0 || i % 4 > 0);
        group_product(c[part], a[0][slice], columns + kTokens * kLine, slice, true);
        if constexpr (Terms == 2) group_product(c[part], a[1][slice], columns, slice, true);
      }
    products_commit();
#pragma unroll
    for (int part = 0; part < Parts; ++part) products_wait<0>(c[part]);
    if (i % 4 == 3 || i + 1 == stages) {
#pragma unroll
      for (int part = 0; part < Parts; ++part)
#pragma unroll
        for (int e = 0; e < 32; ++e) total[part][e] += c[part][e];
    }
  }
  const int row = row0 + warp_id() * 16 + lane / 4;
#pragma unroll
  for (int part = 0; part < Parts; ++part)
#pragma unroll
    for (int e = 0; e < 32; ++e) {
      const int token = token0 + 64 * part + e / 4 * 8 + 2 * (lane % 4) + e % 2, mine = row + 8 * (e / 2 % 2);
      if (mine >= n || token >= count) continue;
      y[static_cast<int64_t>(token) * n + mine] = total[part][e] * scales[token] * (row_scales ? row_scales[mine] : 1.0f);
    }
}
