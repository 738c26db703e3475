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

// A lane's keys (upper halves of topk_key) of experts lane, lane + 32, ..; 0 where there is none.
template <int Each> struct ExpertKeys {
  uint32_t key[Each];
  bool finite = true;  // of the logits that this lane read

  __device__ __forceinline__ ExpertKeys(const float* logits, int experts) {
#pragma unroll
    for (int i = 0; i < Each; ++i) {
      const int e = lane_id() + 32 * i;
      const float x = e < experts ? logits[e] : 0.0f;
      finite &= finite32(x);
      key[i] = e < experts ? static_cast<uint32_t>(topk_key(x, 0) >> 32) : 0;
    }
  }
  __device__ __forceinline__ uint32_t largest() const {
    uint32_t best = key[0];
#pragma unroll
    for (int i = 1; i < Each; ++i) best = max(best, key[i]);
    return best;
  }
};

// How many of the 32 keys in `room` are larger than this lane's.
__device__ __forceinline__ int keys_above(const uint32_t* room, uint32_t mine) {
  int count = 0;
#pragma unroll
  for (int j = 0; j < 32; j += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(room + j);
    count += (four.x > mine) + (four.y > mine) + (four.z > mine) + (four.w > mine);
  }
  return count;
}

// Whether the lanes hold 0 .. 31, in any order: whether no two of their keys are equal.
__device__ __forceinline__ bool all_ranks(int rank) {
#if STRATA_ARCH >= 800
  return __reduce_or_sync(kFullWarp, 1u << rank) == kFullWarp;
#else
  uint32_t seen = 1u << rank;
#pragma unroll
  for (int half = 16; half > 0; half /= 2) seen |= __shfl_xor_sync(kFullWarp, seen, half);
  return seen == kFullWarp;
#endif
}

constexpr int kChoiceWords = 64;  // shared memory of a warp that chooses, on a border of 16 bytes

// The k <= 32 best experts in order, a lane each, without a turn for each: the k-th of the lanes' largest keys is no larger than the k-th of
// all, few keys reach it, and each of those counts the larger ones. False where too many reach it or two that matter are equal.
template <int Each> __device__ __forceinline__ bool choose_by_count(const ExpertKeys<Each>& keys, int experts, int k, uint32_t* room, int& mine) {
  const int lane = lane_id();
  const uint32_t best = max(keys.largest(), static_cast<uint32_t>(lane));  // no finite logit has a key so small
  room[lane] = best;
  __syncwarp();
  const int place = keys_above(room, best);
  if (!all_ranks(place)) return false;
  const uint32_t least = room[__ffs(static_cast<int>(__ballot_sync(kFullWarp, place == k - 1))) - 1];
  __syncwarp();
  int count = 0;
#pragma unroll
  for (int i = 0; i < Each; ++i) {
    const bool in = keys.key[i] >= least && lane + 32 * i < experts;
    const uint32_t all = __ballot_sync(kFullWarp, in);
    const int at = count + __popc(all & ((1u << lane) - 1u));
    if (in && at < 32) room[at] = keys.key[i], room[32 + at] = static_cast<uint32_t>(lane + 32 * i);
    count += __popc(all);
  }
  if (count > 32) return false;
  if (lane >= count) room[lane] = static_cast<uint32_t>(lane), room[32 + lane] = 0;
  __syncwarp();
  const int rank = keys_above(room, room[lane]);
  const uint32_t expert = room[32 + lane];
  if (!all_ranks(rank)) return false;
  __syncwarp();  // all lanes have read the keys
  room[rank] = expert;
  __syncwarp();
  mine = min(static_cast<int>(room[lane]), experts - 1);
  __syncwarp();
  return true;
}

// The same, up to 64, a turn for each; lane l has ranks l and l + 32.
template <int Each> __device__ __forceinline__ void choose_in_turn(ExpertKeys<Each>& keys, int experts, int k, int& mine0, int& mine1) {
  const int lane = lane_id();
  uint32_t best = 0;
  int at = 0;  // the first place that has a lane's largest
  const auto find_best = [&] {
    best = keys.key[0], at = 0;
#pragma unroll
    for (int i = 1; i < Each; ++i)
      if (keys.key[i] > best) best = keys.key[i], at = i;
  };
  find_best();
#pragma unroll 1
  for (int r = 0; r < k; ++r) {
    const uint32_t most = warp_largest(best);
    // The lowest of those that have it; not a number may look like no expert.
    const uint32_t first = ~warp_largest(best == most ? ~static_cast<uint32_t>(lane + 32 * at) : 0u);
    const int e = min(static_cast<int>(first), experts - 1);
    if (lane == r) mine0 = e;
    if (lane + 32 == r) mine1 = e;
    if (lane == e % 32) {
#pragma unroll
      for (int i = 0; i < Each; ++i)
        if (i == at) keys.key[i] = 0;
      find_best();
    }
  }
}

// The expert of every rank below k: lane l those of ranks l and l + 32. Experts: at least as many as there are; `room`: kChoiceWords.
template <int Experts>
__device__ __forceinline__ bool ranked_experts(const float* logits, int experts, int k, uint32_t* room, int& mine0, int& mine1) {
  ExpertKeys<(Experts + 31) / 32> keys(logits, experts);
  mine0 = 0, mine1 = 0;
  if (k > 32 || !choose_by_count(keys, experts, k, room, mine0)) choose_in_turn(keys, experts, k, mine0, mine1);
  return keys.finite;
}

template <int Experts>
__device__ __forceinline__ Choice choose_experts(const float* logits, int experts, int k, bool renormalise, uint32_t* room) {
  const int lane = lane_id();
  int mine0, mine1;
  Choice c{{0, 0}, {0.0f, 0.0f}, true};
  c.finite = ranked_experts<Experts>(logits, experts, k, room, mine0, mine1);
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
