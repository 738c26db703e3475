// The delta rule's state and one row's step (contract.h, docs/contract.md): a warp a column of a head's state, lanes by key.
// Macro: STRATA_KEY_DIM.
#pragma once

#include "rows.cuh"

#ifndef STRATA_KEY_DIM
#define STRATA_KEY_DIM 128
#endif

namespace strata {

constexpr int kKeyDim = STRATA_KEY_DIM, kEach = (kKeyDim + 31) / 32;

struct Delta {
  StepRows rows;
  float* state;    // [slots, heads, value_dim, key_dim]
  float* pending;  // [slots, 64, keys, values, beta, g]
  int key_heads, heads, value_dim, tiled;

  __device__ __forceinline__ int key_width() const { return key_heads * kKeyDim; }
  __device__ __forceinline__ int value_width() const { return heads * value_dim; }
  __device__ __forceinline__ int key_head(int h) const { return tiled ? h % key_heads : h / (heads / key_heads); }
  // Whether value head h is the first of its key head.
  __device__ __forceinline__ bool owns_key(int h) const { return tiled ? h < key_heads : h % (heads / key_heads) == 0; }
  __device__ __forceinline__ float* kept(int slot, int position) const {
    const size_t width = static_cast<size_t>(key_width()) + value_width() + 2 * heads;
    return pending + (static_cast<size_t>(slot) * kRingRows + ring_row(position)) * width;
  }
};

// A lane's part of a column or key; lanes past the key's width hold nothing.
struct Part {
  float at[kEach];
  __device__ __forceinline__ void load(const float* from) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int k = lane_id() + 32 * i;
      at[i] = kKeyDim % 32 == 0 || k < kKeyDim ? from[k] : 0.0f;
    }
  }
  __device__ __forceinline__ void store(float* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (kKeyDim % 32 == 0 || lane_id() + 32 * i < kKeyDim) to[lane_id() + 32 * i] = at[i];
  }
  __device__ __forceinline__ float dot(const Part& other) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (kKeyDim % 32 == 0 || lane_id() + 32 * i < kKeyDim) sum = fma32(at[i], other.at[i], sum);
    return warp_tree_sum(sum);
  }
};

// The column after one row.
__device__ __forceinline__ void advance(Part& s, const Part& key, float value, float beta, float decay) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) s.at[i] = decay * s.at[i];
  const float d = delta_error(beta, value, s.dot(key));
#pragma unroll
  for (int i = 0; i < kEach; ++i) s.at[i] = fma32(key.at[i], d, s.at[i]);
}

// Sums over the warp of N values a lane each in the contract's tree, N a power of two; lane l gets the one of column l / (32 / N). Sums of
// pairs commute, so that each step may leave half of its columns to the partner: N + 1 exchanges instead of 5 N.
template <int N, int Apart = 16> __device__ __forceinline__ float column_sums(const float (&x)[N]) {
  if constexpr (N == 1) {
    float sum = x[0];
#pragma unroll
    for (int apart = Apart; apart > 0; apart /= 2) sum = sum + __shfl_xor_sync(kFullWarp, sum, apart);
    return sum;
  } else {
    const bool upper = lane_id() & Apart;
    float half[N / 2];
#pragma unroll
    for (int c = 0; c < N / 2; ++c) {
      const float mine = upper ? x[c + N / 2] : x[c], other = upper ? x[c] : x[c + N / 2];
      half[c] = mine + __shfl_xor_sync(kFullWarp, other, Apart);
    }
    return column_sums<N / 2, Apart / 2>(half);
  }
}

// Dots of N columns with one key, as column_sums leaves them.
template <int N> __device__ __forceinline__ float column_dots(const Part (&s)[N], const Part& key) {
  float sum[N];
#pragma unroll
  for (int c = 0; c < N; ++c) {
    sum[c] = 0.0f;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (kKeyDim % 32 == 0 || lane_id() + 32 * i < kKeyDim) sum[c] = fma32(s[c].at[i], key.at[i], sum[c]);
  }
  return column_sums(sum);
}

// N columns after one row; `value`: that of this lane's column (column_sums).
template <int N> __device__ __forceinline__ void advance_columns(Part (&s)[N], const Part& key, float value, float beta, float decay) {
#pragma unroll
  for (int c = 0; c < N; ++c)
#pragma unroll
    for (int i = 0; i < kEach; ++i) s[c].at[i] = decay * s[c].at[i];
  const float error = delta_error(beta, value, column_dots(s, key));
#pragma unroll
  for (int c = 0; c < N; ++c) {
    const float d = __shfl_sync(kFullWarp, error, c * (32 / N));
#pragma unroll
    for (int i = 0; i < kEach; ++i) s[c].at[i] = fma32(key.at[i], d, s[c].at[i]);
  }
}

// Applies the committed rows before `position` to column v of head h and stores it; false where their number cannot be right.
__device__ __forceinline__ bool settle(const Delta& delta, const int* commits, int sequence, int position, int h, int v, Part& s) {
  const int count = position == 0 ? 0 : commits[sequence];
  if (count < 0 || count > kRingRows || count > position) return false;
  float* column = delta.state + ((static_cast<size_t>(sequence) * delta.heads + h) * delta.value_dim + v) * kKeyDim;
  if (position == 0) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) s.at[i] = 0.0f;
  } else {
    s.load(column);
  }
  for (int t = 0; t < count; ++t) {
    const float* row = delta.kept(sequence, position - count + t);
    const float* gates = row + delta.key_width() + delta.value_width();
    Part key;
    key.load(row + delta.key_head(h) * kKeyDim);
    advance(s, key, row[delta.key_width() + h * delta.value_dim + v], gates[h], exp32(gates[delta.heads + h]));
  }
  s.store(column);
  return true;
}

// `settle` of N columns v, v + stride, .. (those below value_dim; N a power of two), all of them on their way together; `count` rows, known to be right.
template <int N>
__device__ __forceinline__ void settle_columns(const Delta& delta, int count, int sequence, int position, int h, int v, int stride, Part (&s)[N]) {
  float* columns = delta.state + (static_cast<size_t>(sequence) * delta.heads + h) * delta.value_dim * kKeyDim;
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) s[i].at[e] = 0.0f;
    if (position > 0 && v + stride * i < delta.value_dim) s[i].load(columns + static_cast<size_t>(v + stride * i) * kKeyDim);
  }
  for (int t = 0; t < count; ++t) {
    const float* row = delta.kept(sequence, position - count + t);
    const float *gates = row + delta.key_width() + delta.value_width(), *values = row + delta.key_width() + h * delta.value_dim;
    const int mine = v + stride * (lane_id() / (32 / N));  // this lane's column
    const float value = mine < delta.value_dim ? values[mine] : 0.0f;
    Part key;
    key.load(row + delta.key_head(h) * kKeyDim);
    advance_columns(s, key, value, gates[h], exp32(gates[delta.heads + h]));
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (v + stride * i < delta.value_dim) s[i].store(columns + static_cast<size_t>(v + stride * i) * kKeyDim);
}

}  // namespace strata
