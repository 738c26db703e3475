// Step forms of everything that is not a quantised product: sums over 32 lanes and the fixed tree (contract.h).
#pragma once

#include "device.cuh"

namespace strata {

// Lane dot of n values at a and b: lane l takes l, l + 32, ...; every lane gets the sum.
__device__ __forceinline__ float warp_dot(const float* a, const float* b, int n) {
  float x = 0.0f;
  for (int i = lane_id(); i < n; i += 32) x = fma32(a[i], b[i], x);
  return warp_tree_sum(x);
}

// The same of values that lie in shared memory, several reads at a time.
__device__ __forceinline__ float staged_dot(const float* a, const float* b, int n) {
  float x = 0.0f;
#pragma unroll 8
  for (int i = lane_id(); i < n; i += 32) x = fma32(a[i], b[i], x);
  return warp_tree_sum(x);
}

// Lane dot of the row with itself, by one warp; the next values are on their way while a batch is added.
__device__ __forceinline__ float square_sum(const float* row, int width) {
  constexpr int batch = 16;
  float x = 0.0f, next[batch];
  const int whole = width / (32 * batch) * (32 * batch);
  row += lane_id();
  if (whole > 0)
#pragma unroll
    for (int j = 0; j < batch; ++j) next[j] = row[32 * j];
#pragma unroll 1
  for (int i = 0; i < whole; i += 32 * batch) {
    float v[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) v[j] = next[j];
    if (i + 32 * batch < whole)
#pragma unroll
      for (int j = 0; j < batch; ++j) next[j] = row[i + 32 * (batch + j)];
#pragma unroll
    for (int j = 0; j < batch; ++j) x = fma32(v[j], v[j], x);
  }
  for (int i = whole; i + lane_id() < width; i += 32) x = fma32(row[i], row[i], x);
  return warp_tree_sum(x);
}

// Exponentials over an array: 0 exp32, 1 log32, 2 sigmoid32, 3 silu32, 4 softplus32.
template <int Function> __device__ __forceinline__ void map(const float* x, size_t n, float* y) {
  const size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  if constexpr (Function == 0) y[i] = exp32(x[i]);
  if constexpr (Function == 1) y[i] = log32(x[i]);
  if constexpr (Function == 2) y[i] = sigmoid32(x[i]);
  if constexpr (Function == 3) y[i] = silu32(x[i]);
  if constexpr (Function == 4) y[i] = softplus32(x[i]);
}

// One warp quantises the 32 values that its lanes hold; lane 0 writes the scale and both sums of codes.
__device__ __forceinline__ void quantize_block(float x, int8_t* q, float* d, int16_t* sums) {
  const float amax = warp_max(fabsf(x));
  const int code = block_code(x, block_inverse(amax));
  q[lane_id()] = static_cast<int8_t>(code);
  int sum = code;
#pragma unroll
  for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(kFullWarp, sum, half);
  if (lane_id() % 16 == 0) sums[lane_id() / 16] = static_cast<int16_t>(sum);
  if (lane_id() == 0) *d = block_scale(amax);
}

// A warp a block of 32; rows lie one after another.
__device__ __forceinline__ void quantize(const float* x, int blocks, int8_t* q, float* d, int16_t* sums) {
  const int b = blockIdx.x * (blockDim.x / 32) + warp_id();
  if (b < blocks) quantize_block(x[b * 32 + lane_id()], q + b * 32, d + b, sums + 2 * b);
}

// A warp a row: out = (x * (1 / sqrt(mean of squares + eps))) * weight.
__device__ __forceinline__ void rms_norm(const float* x, const float* weight, int rows, int width, float eps, float* out) {
  const int r = blockIdx.x * (blockDim.x / 32) + warp_id();
  if (r >= rows) return;
  const float* row = x + static_cast<size_t>(r) * width;
  const float mean = div32(warp_dot(row, row, width), static_cast<float>(width));
  const float scale = div32(1.0f, sqrt32(mean + eps));
  for (int i = lane_id(); i < width; i += 32) out[static_cast<size_t>(r) * width + i] = (row[i] * scale) * weight[i];
}

// One warp: the k <= 32 best of n <= 32 * Each logits by topk_key, and their weights. Lane r gets rank r; each lane holds
// logits lane, lane + 32, ... Sums over all experts (renormalise = false) take the lane sum of exp32 over all logits.
template <int Each>
__device__ __forceinline__ void router_topk(const float* logits, int n, int k, bool renormalise, int& id, float& weight) {
  uint64_t key[Each];
#pragma unroll
  for (int i = 0; i < Each; ++i) {
    const int e = lane_id() + 32 * i;
    key[i] = e < n ? topk_key(logits[e], static_cast<uint32_t>(e)) : 0;
  }
  uint64_t mine = 0;
  for (int r = 0; r < k; ++r) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < Each; ++i) best = key[i] > best ? key[i] : best;
#if STRATA_ARCH >= 800
    const uint32_t high = __reduce_max_sync(kFullWarp, static_cast<uint32_t>(best >> 32));
    const uint32_t low = __reduce_max_sync(kFullWarp, best >> 32 == high ? static_cast<uint32_t>(best) : 0u);
    best = static_cast<uint64_t>(high) << 32 | low;
#else
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
      const uint64_t other = __shfl_xor_sync(kFullWarp, best, half);
      best = other > best ? other : best;
    }
#endif
#pragma unroll
    for (int i = 0; i < Each; ++i) key[i] = key[i] == best ? 0 : key[i];
    if (lane_id() == r) mine = best;
  }
  id = static_cast<int>(topk_index(mine));
  const bool in = lane_id() < k;
  const float first = logits[topk_index(__shfl_sync(kFullWarp, mine, 0))];
  const float e = in ? exp32(logits[in ? id : 0] - first) : 0.0f;
  float sum = e;
  if (!renormalise) {
    sum = 0.0f;
    for (int i = lane_id(); i < n; i += 32) sum += exp32(logits[i] - first);
  }
  weight = div32(e, warp_tree_sum(sum));
}

// One split of one query head: 256 threads, head_dim <= 256 a multiple of 32; cells [0, count) of the split are visible.
// k and v: cell j at j * stride. Writes m, l and o[head_dim].
__device__ __forceinline__ void attention_split_step(const float* q, const float* k, const float* v, size_t stride, int head_dim,
                                                     int count, float scale, float* m, float* l, float* o) {
  __shared__ float p[kAttentionSplit];
  __shared__ float top;
  for (int j = warp_id(); j < kAttentionSplit; j += static_cast<int>(blockDim.x) / 32) {
    float score = bits_float(0xff800000u);
    if (j < count) score = warp_dot(q, k + j * stride, head_dim) * scale;
    if (lane_id() == 0) p[j] = score;
  }
  __syncthreads();
  if (warp_id() == 0) {
    float most = p[lane_id()];
    for (int j = lane_id() + 32; j < kAttentionSplit; j += 32) most = fmaxf(most, p[j]);
    most = warp_max(most);
    if (lane_id() == 0) top = most;
  }
  __syncthreads();
  const float most = top;
  if (threadIdx.x < kAttentionSplit) p[threadIdx.x] = static_cast<int>(threadIdx.x) < count ? exp32(p[threadIdx.x] - most) : 0.0f;
  __syncthreads();
  if (warp_id() == 0) {
    float sum = 0.0f;
    for (int j = lane_id(); j < kAttentionSplit; j += 32) sum += p[j];
    sum = warp_tree_sum(sum);
    if (lane_id() == 0) *m = most, *l = sum;
  }
  const int dim = threadIdx.x;
  if (dim >= head_dim) return;
  float lane[kLanes] = {};  // a thread holds all lanes of its dimension: no exchange
  for (int j0 = 0; j0 < count; j0 += kLanes) {
#pragma unroll
    for (int i = 0; i < kLanes; ++i)
      if (j0 + i < count) lane[i] = fma32(p[j0 + i], v[(j0 + i) * stride + dim], lane[i]);
  }
#pragma unroll
  for (int level = 1; level <= 5; ++level) {
#pragma unroll
    for (int i = 0; i < kLanes >> level; ++i) lane[i] += lane[i + (kLanes >> level)];
  }
  o[dim] = lane[0];
}

// Combines `splits` splits of one head: thread = dimension.
__device__ __forceinline__ void attention_combine(const float* m, const float* l, const float* o, int splits, int head_dim, float* out) {
  float most = m[0];
  for (int s = 1; s < splits; ++s) most = fmaxf(most, m[s]);
  float sum = 0.0f, value = 0.0f;
  for (int s = 0; s < splits; ++s) {
    const float a = exp32(m[s] - most);
    sum = fma32(l[s], a, sum);
    value = fma32(o[static_cast<size_t>(s) * head_dim + threadIdx.x], a, value);
  }
  out[threadIdx.x] = div32(value, sum);
}

// Delta rule, one column (value v) of one head's state a warp: state[v][k] with K a multiple of 32 contiguous k.
template <int K>
__device__ __forceinline__ float delta_step(float* state, const float* k, const float* q, float value, float decay, float beta) {
  float s[K / 32], key[K / 32];
  float read = 0.0f;
#pragma unroll
  for (int i = 0; i < K / 32; ++i) {
    key[i] = k[lane_id() + 32 * i];
    s[i] = decay * state[lane_id() + 32 * i];
    read = fma32(s[i], key[i], read);
  }
  const float d = delta_error(beta, value, warp_tree_sum(read));
  float out = 0.0f;
#pragma unroll
  for (int i = 0; i < K / 32; ++i) {
    s[i] = fma32(key[i], d, s[i]);
    state[lane_id() + 32 * i] = s[i];
    out = fma32(s[i], q[lane_id() + 32 * i], out);
  }
  return warp_tree_sum(out);
}

}  // namespace strata
