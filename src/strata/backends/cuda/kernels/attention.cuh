// Attention over a list of cells in splits of 256, step form (contract.h): what dense and sparse attention share.
//
// A thread block takes one row and up to H query heads of one KV head. Scores: four threads a cell, so that keys are read
// eight values at a time and once for all heads. Values: a thread holds the 32 lanes of one value of two heads.
#pragma once

#include "kv.cuh"
#include "lanes.cuh"

namespace strata {

constexpr int kAttentionThreads = 256;

struct KvPools {
  const void *k, *v;
  const unsigned short *k_scales, *v_scales;
  int kv_heads, head_dim;
};

// What a thread block keeps in shared memory, for H heads: queries [H][head_dim], scores [H][256], cells' places.
template <int H> struct SplitScratch {
  float score[H][kAttentionSplit];
  float top[H], sum[H];
  int cell[kAttentionSplit];  // page * 64 + cell in the page; -1: none
};

// score[h][c] of the cells [begin, end) of the split, for `heads` <= H heads.
template <int Kv, int H>
__device__ __forceinline__ void split_scores(SplitScratch<H>& s, const float* q, const KvPools& kv, int kv_head, int heads, int begin,
                                             int end, float scale) {
  const int j = threadIdx.x % 4, dim = kv.head_dim, group = kv_group(dim);
  for (int c0 = begin / 64 * 64; c0 < end; c0 += kAttentionThreads / 4) {
    const int c = c0 + static_cast<int>(threadIdx.x) / 4;
    const bool in = c >= begin && c < end;
    const int at = in ? s.cell[c] : s.cell[begin];
    const size_t row = cell_offset(at / kPageCells, kv.kv_heads, kv_head, at % kPageCells, dim);
    float acc[H][8] = {};
    for (int d = 8 * j; d < dim; d += 32) {
      float key[8];
      kv_eight<Kv>(kv.k, kv.k_scales, row + d, group, key);
#pragma unroll
      for (int h = 0; h < H; ++h)
        if (h < heads) fma8(key, q + h * dim + d, acc[h]);
    }
#pragma unroll
    for (int h = 0; h < H; ++h) {
      const float dot = quad_tree_sum(acc[h]);
      if (j == 0 && in && h < heads) s.score[h][c] = dot * scale;
    }
  }
  __syncthreads();
}

// Scores become weights; top and sum of each head. Cells outside [begin, end) weigh nothing.
template <int H> __device__ __forceinline__ void split_softmax(SplitScratch<H>& s, int heads, int begin, int end) {
  for (int h = warp_id(); h < heads; h += kAttentionThreads / 32) {
    float most = bits_float(0xff800000u);
    for (int c = lane_id(); c < end; c += 32)
      if (c >= begin) most = fmaxf(most, s.score[h][c]);
    most = warp_max(most);
    float sum = 0.0f;
    for (int c = lane_id(); c < end; c += 32)
      if (c >= begin) {
        const float p = exp32(s.score[h][c] - most);
        s.score[h][c] = p;
        sum += p;
      }
    sum = warp_tree_sum(sum);
    if (lane_id() == 0) s.top[h] = most, s.sum[h] = sum;
  }
  __syncthreads();
}

// Lane sums of one value d of `N` heads from h on: out[i] of head h + i.
template <int Kv, int H, int N>
__device__ __forceinline__ void value_sums(const SplitScratch<H>& s, const KvPools& kv, int kv_head, int h, int d, int begin, int end,
                                           float (&out)[N]) {
  const int dim = kv.head_dim, group = kv_group(dim);
  float lane[N][kLanes] = {};
  for (int c0 = begin / kLanes * kLanes; c0 < end; c0 += kLanes) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const int c = c0 + i;
      if (c < begin || c >= end) continue;
      const int at = s.cell[c];
      const size_t row = cell_offset(at / kPageCells, kv.kv_heads, kv_head, at % kPageCells, dim);
      const float v = kv_value<Kv>(kv.v, kv.v_scales, row + d, group);
#pragma unroll
      for (int n = 0; n < N; ++n) lane[n][i] = fma32(s.score[h + n][c], v, lane[n][i]);
    }
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < kLanes / 2; ++i)
        if (i < half) lane[n][i] += lane[n][i + half];
    }
    out[n] = lane[n][0];
  }
}

// Where splits leave their results: of one row, [heads][splits] maxima and sums, [heads][splits][head_dim] values.
struct SplitResults {
  float *top, *sum, *value;
  int splits, head_dim;
};

template <int Kv, int H>
__device__ __forceinline__ void split_values(const SplitScratch<H>& s, const KvPools& kv, int kv_head, int heads, int begin, int end,
                                             const SplitResults& r, int head, int split) {
  for (int u = threadIdx.x; u < (heads + 1) / 2 * kv.head_dim; u += kAttentionThreads) {
    const int h = u / kv.head_dim * 2, d = u % kv.head_dim;
    float* to = r.value + (static_cast<size_t>(head + h) * r.splits + split) * r.head_dim + d;
    if (h + 1 < heads) {
      float out[2];
      value_sums<Kv, H, 2>(s, kv, kv_head, h, d, begin, end, out);
      to[0] = out[0];
      to[static_cast<size_t>(r.splits) * r.head_dim] = out[1];
    } else {
      float out[1];
      value_sums<Kv, H, 1>(s, kv, kv_head, h, d, begin, end, out);
      to[0] = out[0];
    }
  }
  for (int h = threadIdx.x; h < heads; h += kAttentionThreads) {
    r.top[static_cast<size_t>(head + h) * r.splits + split] = s.top[h];
    r.sum[static_cast<size_t>(head + h) * r.splits + split] = s.sum[h];
  }
}

// Joins splits [first, last] in ascending order under their largest maximum: out[d] of one head.
__device__ __forceinline__ void join_splits(const SplitResults& r, int head, int first, int last, float* out) {
  const float* top = r.top + static_cast<size_t>(head) * r.splits;
  const float* sums = r.sum + static_cast<size_t>(head) * r.splits;
  const float* value = r.value + static_cast<size_t>(head) * r.splits * r.head_dim;
  for (int d = threadIdx.x; d < r.head_dim; d += blockDim.x) {
    float most = __ldcg(top + first);
    for (int s = first + 1; s <= last; ++s) most = fmaxf(most, __ldcg(top + s));
    float sum = 0.0f, total = 0.0f;
    for (int s = first; s <= last; ++s) {
      const float a = exp32(__ldcg(top + s) - most);
      sum = fma32(__ldcg(sums + s), a, sum);
      total = fma32(__ldcg(value + static_cast<size_t>(s) * r.head_dim + d), a, total);
    }
    out[d] = div32(total, sum);
  }
}

}  // namespace strata
