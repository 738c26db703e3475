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

// `settle` of columns v, v + stride, .. (those below value_dim), all of them on their way together; `count` rows, known to be right.
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
    float value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = v + stride * i < delta.value_dim ? values[v + stride * i] : 0.0f;
    Part key;
    key.load(row + delta.key_head(h) * kKeyDim);
    const float beta = gates[h], decay = exp32(gates[delta.heads + h]);
#pragma unroll
    for (int i = 0; i < N; ++i) advance(s[i], key, value[i], beta, decay);
  }
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (v + stride * i < delta.value_dim) s[i].store(columns + static_cast<size_t>(v + stride * i) * kKeyDim);
}

}  // namespace strata
