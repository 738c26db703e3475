// The router's choice (contract.h `topk_key`) by one warp.
#pragma once

#include "op.cuh"

namespace strata {

__device__ __forceinline__ uint32_t warp_largest(uint32_t x) {
#if STRATA_ARCH >= 800
  return __reduce_max_sync(kFullWarp, x);
#else
#pragma unroll
  for (int half = 16; half > 0; half /= 2) x = max(x, __shfl_xor_sync(kFullWarp, x, half));
  return x;
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
  uint32_t key[each], best = 0;  // upper halves of topk_key; a lane's largest, and the first place that has it
  int at = 0, mine0 = 0, mine1 = 0;
  const auto find_best = [&] {
    best = key[0], at = 0;
#pragma unroll
    for (int i = 1; i < each; ++i)
      if (key[i] > best) best = key[i], at = i;
  };
  Choice c{{0, 0}, {0.0f, 0.0f}, true};
#pragma unroll
  for (int i = 0; i < each; ++i) {
    const int e = lane + 32 * i;
    const float x = e < experts ? logits[e] : 0.0f;
    c.finite &= finite32(x);
    key[i] = e < experts ? static_cast<uint32_t>(topk_key(x, 0) >> 32) : 0;
  }
  find_best();
  for (int r = 0; r < k; ++r) {
    const uint32_t most = warp_largest(best);
    // The lowest of those that have it; not a number may look like no expert.
    const uint32_t first = ~warp_largest(best == most ? ~static_cast<uint32_t>(lane + 32 * at) : 0u);
    const int e = min(static_cast<int>(first), experts - 1);
    if (lane == r) mine0 = e;
    if (lane + 32 == r) mine1 = e;
    if (lane == e % 32) {
#pragma unroll
      for (int i = 0; i < each; ++i)
        if (i == at) key[i] = 0;
      find_best();
    }
  }
  const float top = logits[__shfl_sync(kFullWarp, mine0, 0)];
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 2; ++j)
    if (lane + 32 * j < k) {
      c.id[j] = j == 0 ? mine0 : mine1;
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
