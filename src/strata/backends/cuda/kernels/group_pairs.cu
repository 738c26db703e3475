// (row, expert) pairs of a prompt chunk by expert, in three launches, and the tiles that products of experts work on.
// Pairs p = row * k + rank come sorted by expert, then p, as group_by_expert (router.cu) leaves them.
#include "op.cuh"
#include "sum_before.cuh"

using namespace strata;

namespace {

constexpr int kPart = 1024;  // pairs a thread block

// This thread block's ids, beyond the last pair -1, in shared memory.
__device__ __forceinline__ void load_ids(const int* ids, int count, int* part) {
  for (int i = threadIdx.x; i < kPart; i += blockDim.x) {
    const int p = blockIdx.x * kPart + i;
    part[i] = p < count ? ids[p] : -1;
  }
  __syncthreads();
}

}  // namespace

extern "C" {

// counts[part][e]: pairs of expert e among 1,024. A thread block a part.
__global__ void count_pairs(const int* live, const int* ids, int* counts, int k, int experts, uint32_t* faults) {
  __shared__ int part[kPart];
  dependency_wait();
  dependency_launch();
  const int count = *live * k;
  load_ids(ids, count, part);
  bool inside = true;
  for (int i = threadIdx.x; i < kPart; i += blockDim.x)
    inside &= blockIdx.x * kPart + i >= count || (part[i] >= 0 && part[i] < experts);
  if (!inside) report(faults, kFaultRange);
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int members = 0;
#pragma unroll 8
    for (int i = 0; i < kPart; ++i) members += part[i] == e;
    counts[blockIdx.x * experts + e] = members;
  }
}

// offsets[e]; counts become where each part's pairs of an expert begin. One thread block, a thread an expert.
__global__ void place_pairs(int* counts, int* offsets, int parts, int experts) {
  dependency_wait();
  dependency_launch();
  int begin = 0;
  for (int first = 0; first < experts; first += blockDim.x) {
    const int e = first + threadIdx.x;
    __shared__ int warps[32];
    int members = 0, all;
    if (e < experts)
      for (int p = 0; p < parts; ++p) members += counts[p * experts + e];
    int at = begin + sum_before(members, warps, all);
    begin += all;
    if (e >= experts) continue;
    offsets[e] = at;
    for (int p = 0; p < parts; ++p) {
      const int mine = counts[p * experts + e];
      counts[p * experts + e] = at, at += mine;
    }
  }
  if (threadIdx.x == 0) offsets[experts] = begin;
}

// Tiles of up to `wide` pairs of an expert, and of up to `narrow` where no more are left of it. One thread block, a thread an expert.
// wides, narrows: how many, then expert, first pair, pairs of each.
__global__ void place_tiles(const int* offsets, int* wides, int* narrows, int experts, int wide, int narrow) {
  dependency_wait();
  dependency_launch();
  int wide_begin = 0, narrow_begin = 0;
  for (int first = 0; first < experts; first += blockDim.x) {
    const int e = first + threadIdx.x;
    __shared__ int warps[32];
    int all_wide, all_narrow;
    const int at = e < experts ? offsets[e] : 0, members = e < experts ? offsets[e + 1] - at : 0;
    const int rest = members % wide, few = rest > 0 && rest <= narrow, many = members / wide + (rest > narrow);
    const int wide_at = wide_begin + sum_before(many, warps, all_wide), narrow_at = narrow_begin + sum_before(few, warps, all_narrow);
    wide_begin += all_wide, narrow_begin += all_narrow;
    for (int i = 0; i < many; ++i) {
      int* tile = wides + 1 + 3 * (wide_at + i);
      tile[0] = e, tile[1] = at + i * wide, tile[2] = min(wide, members - i * wide);
    }
    if (few) {
      int* tile = narrows + 1 + 3 * narrow_at;
      tile[0] = e, tile[1] = at + members - rest, tile[2] = rest;
    }
  }
  if (threadIdx.x == 0) wides[0] = wide_begin, narrows[0] = narrow_begin;
}

// Tiles of up to `most` pairs of an expert, a multiple of 32: as few as do, all as full as the others but for 32. tiles: how many, then
// expert, first pair, pairs of each. One thread block, a thread an expert.
__global__ void place_even_tiles(const int* offsets, int* tiles, int experts, int most) {
  dependency_wait();
  dependency_launch();
  int begin = 0;
  for (int first = 0; first < experts; first += blockDim.x) {
    const int e = first + threadIdx.x;
    __shared__ int warps[32];
    int all;
    const int at = e < experts ? offsets[e] : 0, members = e < experts ? offsets[e + 1] - at : 0;
    const int fewest = (members + most - 1) / most, each = fewest ? ((members + fewest - 1) / fewest + 31) / 32 * 32 : 1;
    const int count = (members + each - 1) / each, from = begin + sum_before(count, warps, all);
    begin += all;
    for (int i = 0; i < count; ++i) {
      int* tile = tiles + 1 + 3 * (from + i);
      tile[0] = e, tile[1] = at + i * each, tile[2] = min(each, members - i * each);
    }
  }
  if (threadIdx.x == 0) tiles[0] = begin;
}

// pairs, from where place_pairs says. A thread block a part.
__global__ void scatter_pairs(const int* live, const int* ids, const int* begins, int* pairs, int k, int experts) {
  __shared__ int part[kPart];
  dependency_wait();
  dependency_launch();
  load_ids(ids, *live * k, part);
  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    int at = begins[blockIdx.x * experts + e];
    for (int i = 0; i < kPart; ++i)
      if (part[i] == e) pairs[at++] = blockIdx.x * kPart + i;
  }
}

}  // extern "C"
