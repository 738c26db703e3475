// router: each row's experts and their weights; group_by_expert: the (row, rank) pairs by expert.
#include "op.cuh"
#include "step.cuh"

#ifndef STRATA_EXPERTS
#define STRATA_EXPERTS 512
#endif

using namespace strata;

namespace {

constexpr int kEach = (STRATA_EXPERTS + 31) / 32;

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

}  // namespace

extern "C" {

// One warp a row; k up to 64. Lane l holds ranks l and l + 32.
__global__ void router(const int* live, const float* logits, int* ids, float* weights, int experts, int k, int renormalise,
                       uint32_t* faults) {
  dependency_launch();
  dependency_wait();
  const int row = blockIdx.x * (blockDim.x / 32) + warp_id(), lane = lane_id();
  if (row >= *live) return;
  logits += static_cast<size_t>(row) * experts, ids += row * k, weights += row * k;
  uint64_t key[kEach];
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int e = lane + 32 * i;
    key[i] = 0;
    if (e >= experts) continue;
    finite &= finite32(logits[e]);
    key[i] = topk_key(logits[e], static_cast<uint32_t>(e));
  }
  if (!finite) report(faults, kFaultNonFinite);
  uint64_t mine[2] = {};
  for (int r = 0; r < k; ++r) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) best = key[i] > best ? key[i] : best;
    best = warp_max_key(best);
#pragma unroll
    for (int i = 0; i < kEach; ++i) key[i] = key[i] == best ? 0 : key[i];
    if (lane == r % 32) mine[r / 32] = best;
  }
  const float top = logits[topk_index(__shfl_sync(kFullWarp, mine[0], 0))];
  float e[2] = {}, sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 2; ++j)
    if (lane + 32 * j < k) {
      e[j] = exp32(logits[topk_index(mine[j])] - top);
      sum += e[j];
    }
  if (!renormalise) {
    sum = 0.0f;
    for (int i = lane; i < experts; i += 32) sum += exp32(logits[i] - top);
  }
  sum = warp_tree_sum(sum);
#pragma unroll
  for (int j = 0; j < 2; ++j)
    if (lane + 32 * j < k) {
      ids[lane + 32 * j] = static_cast<int>(topk_index(mine[j]));
      weights[lane + 32 * j] = div32(e[j], sum);
    }
}

// Pairs p = row * k + rank sorted by expert, then p; those of expert e are [offsets[e], offsets[e + 1]). One thread block, a
// thread an expert; dynamic shared memory: int [experts + 1].
__global__ void group_by_expert(const int* live, const int* ids, int* pairs, int* offsets, int k, int experts, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  int* begin = reinterpret_cast<int*>(shared);
  dependency_launch();
  dependency_wait();
  const int count = *live * k;
  bool inside = true;
  for (int p = threadIdx.x; p < count; p += blockDim.x) inside &= ids[p] >= 0 && ids[p] < experts;
  if (__syncthreads_or(!inside)) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
    for (int e = threadIdx.x; e <= experts; e += blockDim.x) offsets[e] = 0;  // no expert has rows
    return;
  }
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int members = 0;
    for (int p = 0; p < count; ++p) members += ids[p] == e;
    begin[e + 1] = members;
  }
  if (threadIdx.x == 0) begin[0] = 0;
  __syncthreads();
  if (warp_id() == 0) {  // running sums
    int before = 0;
    for (int first = 0; first < experts; first += 32) {
      const int e = first + lane_id();
      int sum = e < experts ? begin[e + 1] : 0;
#pragma unroll
      for (int half = 1; half < 32; half *= 2) {
        const int other = __shfl_up_sync(kFullWarp, sum, half);
        if (lane_id() >= half) sum += other;
      }
      if (e < experts) begin[e + 1] = before + sum;
      before += __shfl_sync(kFullWarp, sum, 31);
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e <= experts; e += blockDim.x) offsets[e] = begin[e];
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int at = begin[e];
    const int end = begin[e + 1];
    for (int p = 0; at < end; ++p)
      if (ids[p] == e) pairs[at++] = p;
  }
}

}  // extern "C"
