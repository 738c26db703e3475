// router: each row's experts and their weights; group_by_expert: the (row, rank) pairs by expert.
#include "op.cuh"
#include "topk.cuh"

#ifndef STRATA_EXPERTS
#define STRATA_EXPERTS 512
#endif

using namespace strata;

extern "C" {

// One warp a row; k up to 64. Lane l holds ranks l and l + 32.
__global__ void router(const int* live, const float* logits, int* ids, float* weights, int experts, int k, int renormalise,
                       uint32_t* faults) {
  __shared__ __align__(16) uint32_t room[32][kChoiceWords];
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.x * (blockDim.x / 32) + warp_id(), lane = lane_id();
  if (row >= *live) return;
  logits += static_cast<size_t>(row) * experts, ids += row * k, weights += row * k;
  const Choice c = choose_experts<STRATA_EXPERTS>(logits, experts, k, renormalise != 0, room[warp_id()]);
  if (!c.finite) report(faults, kFaultNonFinite);
#pragma unroll
  for (int j = 0; j < 2; ++j)
    if (lane + 32 * j < k) ids[lane + 32 * j] = c.id[j], weights[lane + 32 * j] = c.weight[j];
}

// Pairs p = row * k + rank sorted by expert, then p; those of expert e are [offsets[e], offsets[e + 1]). One thread block, a
// thread an expert; dynamic shared memory: int [experts + 1].
__global__ void group_by_expert(const int* live, const int* ids, int* pairs, int* offsets, int k, int experts, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  int* begin = reinterpret_cast<int*>(shared);
  dependency_wait();
  dependency_launch();
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
