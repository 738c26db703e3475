// Choosing the best of many scores by one thread block: counting by digits of their bits, then writing places in ascending order.
#pragma once

#include "op.cuh"
#include "sum_before.cuh"

namespace strata {

constexpr int kSelectThreads = 512;

// A row's scores for ranking: equal order to topk_key's upper half.
__device__ __forceinline__ uint32_t rank_bits(float score) { return static_cast<uint32_t>(topk_key(score, 0) >> 32); }

// One thread block: the highest bin at or above which `left` lie, of counts in shared memory; `left` becomes how many of that bin are
// needed. Barriers before and after.
template <int Bins> __device__ __forceinline__ int last_bin(const int* counts, int* warps, int& left) {
  __shared__ int found, needed;
  constexpr int each = (Bins + kSelectThreads - 1) / kSelectThreads;
  __syncthreads();
  const int first = Bins - each * (static_cast<int>(threadIdx.x) + 1);  // threads in order from the highest bins down
  int own = 0, total;
  for (int i = 0; i < each && first >= 0; ++i) own += counts[first + i];
  const int above = sum_before(own, warps, total);
  if (above < left && above + own >= left) {
    int bin = first + each - 1, need = left - above;
    for (; counts[bin] < need; --bin) need -= counts[bin];
    found = bin, needed = need;
  }
  __syncthreads();
  left = needed;
  return found;
}

// The bits of the last score that is kept, 8 at a time from those that are known; `bits(i)` of score i < n. `left` becomes how many
// scores with exactly these bits are kept.
template <class Bits> __device__ __forceinline__ uint32_t last_kept(uint32_t known, uint32_t mask, int n, int* warps, int& left, Bits bits) {
  __shared__ int counts[256];
  while (mask != 0xffffffffu) {
    const int shift = max(__ffs(static_cast<int>(mask)) - 1, mask == 0 ? 32 : 8) - 8;
    const uint32_t digit = 255u << shift & ~mask;
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kSelectThreads) {
      const uint32_t value = bits(i);
      if ((value & mask) == known) atomicAdd(&counts[(value & digit) >> shift], 1);
    }
    known |= static_cast<uint32_t>(last_bin<256>(counts, warps, left)) << shift;
    mask |= digit;
  }
  return known;
}

// Writes the places of scores above `known`, and of the first `equal` that are it, in ascending order.
template <class Bits, class Place>
__device__ __forceinline__ void write_kept(uint32_t known, int equal, int n, int* warps, int* out, Bits bits, Place place) {
  const int each = (n + kSelectThreads - 1) / kSelectThreads;
  const int begin = min(n, static_cast<int>(threadIdx.x) * each), end = min(n, begin + each);
  int larger = 0, same = 0, total;
  for (int i = begin; i < end; ++i) {
    const uint32_t value = bits(i);
    larger += value > known, same += value == known;
  }
  const int same_before = sum_before(same, warps, total);
  const int kept = max(0, min(same, equal - same_before));
  int at = sum_before(larger + kept, warps, total), seen = same_before;
  for (int i = begin; i < end; ++i) {
    const uint32_t value = bits(i);
    if (value > known || (value == known && seen++ < equal)) out[at++] = place(i);
  }
}

// One thread block: the `budget` best of `blocks` > budget scores, ascending by block. Of the blocks that have exactly the last score
// that is kept the first ones are kept.
__device__ __forceinline__ void choose(const float* scores, int blocks, int budget, int* out) {
  __shared__ int warps[kSelectThreads / 32];
  const auto bits = [&](int i) { return rank_bits(__ldcg(scores + i)); };
  int left = budget;
  const uint32_t known = last_kept(0, 0, blocks, warps, left, bits);
  write_kept(known, left, blocks, warps, out, bits, [](int i) { return i; });
}

}  // namespace strata
