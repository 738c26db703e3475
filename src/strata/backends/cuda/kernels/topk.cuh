// The router's choice (contract.h `topk_key`) by one warp.
#pragma once

#include "op.cuh"

namespace strata {

// The largest of the warp's keys.
__device__ __forceinline__ uint64_t warp_max_key(uint64_t best) {
#if STRATA_ARCH >= 800
  const uint32_t high = __reduce_max_sync(kFullWarp, static_cast<uint32_t>(best >> 32));
  const uint32_t low = __reduce_max_sync(kFullWarp, best >> 32 == high ? static_cast<uint32_t>(best) : 0u);
  return static_cast<uint64_t>(high) << 32 | low;
#else
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    const uint64_t other = __shfl_xor_sync(kFullWarp, best, half);
    best = other > best ? other : best;
  }
  return best;
#endif
}

// Ranks lane and lane + 32 of the k best experts of a row of logits, and their weights.
struct Choice {
  int id[2];
  float weight[2];
  bool finite;  // of the logits that this lane read
};

// Experts: at least as many as there are; k at most 64.
template <int Experts> __device__ __forceinline__ Choice choose_experts(const float* logits, int experts, int k, bool renormalise) {
  constexpr int each = (Experts + 31) / 32;
  const int lane = lane_id();
  uint64_t key[each], mine0 = 0, mine1 = 0;
  Choice c{{0, 0}, {0.0f, 0.0f}, true};
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int e = lane + 32 * i;
    const float x = e < experts ? logits[e] : 0.0f;
    c.finite &= finite32(x);
    key[i] = e < experts ? topk_key(x, static_cast<uint32_t>(e)) : 0;
  }
  for (int r = 0; r < k; ++r) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < each; ++i) best = key[i] > best ? key[i] : best;
    best = warp_max_key(best);
#pragma unroll
    for (int i = 0; i < each; ++i) key[i] = key[i] == best ? 0 : key[i];
    if (lane == r) mine0 = best;
    if (lane + 32 == r) mine1 = best;
  }
  const float top = logits[topk_index(__shfl_sync(kFullWarp, mine0, 0))];
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 2; ++j)
    if (lane + 32 * j < k) {
      c.id[j] = static_cast<int>(topk_index(j == 0 ? mine0 : mine1));
      c.weight[j] = exp32(logits[c.id[j]] - top);
      sum += c.weight[j];
    }
  if (!renormalise) {
    sum = 0.0f;
    for (int i = lane; i < experts; i += 32) sum += exp32(logits[i] - top);
  }
  sum = warp_tree_sum(sum);
#pragma unroll
  for (int j = 0; j < 2; ++j) c.weight[j] = div32(c.weight[j], sum);
  return c;
}

}  // namespace strata
