// Sampling's parts on a GPU (docs/sampling.md): a row's parameters, what its thread blocks share, and the walk through the
// candidates in order.
//
// Inside a row everything is held as d = (best - z) / temperature >= 0, as on the processor: its bits order candidates.
#pragma once

#include "op.cuh"
#include "strata/sample.h"

namespace strata {

constexpr int kSampleChunk = kSumPiece;  // ids a thread block scores

// What the thread blocks of a row leave for each other; zero between steps.
struct RowState {
  uint32_t best;    // ordered bits of the largest z
  uint32_t faults;  // bits by FaultIndex
  unsigned long long choice;
};

// Ascending with x; -0 counts as +0; never 0.
__device__ __forceinline__ uint32_t ordered_bits(float x) { return static_cast<uint32_t>(topk_key(x, 0) >> 32); }
__device__ __forceinline__ float from_ordered(uint32_t bits) { return bits_float(bits & 0x80000000u ? bits ^ 0x80000000u : ~bits); }

struct SampleRowInputs {
  SampleParams p;
  const float* logits;
  const int* counts;     // or null
  const uint32_t* mask;  // or null
  const int* bias_ids;   // of this row
  const float* bias_values;
  uint64_t position;  // of the token being sampled
  int vocab;

  __device__ __forceinline__ bool sorted() const { return p.temperature > 0.0f && (p.top_k > 0 || p.top_p < 1.0f); }
  __device__ __forceinline__ float penalised_value(float z, int id) const { return counts == nullptr ? z : penalise(z, counts[id], p); }
};

// The row's choice as a key: the highest score wins, the lower id on ties.
__device__ __forceinline__ unsigned long long choice_key(float score, int id) { return topk_key(score, static_cast<uint32_t>(id)); }

constexpr int kSortKeys = 2048, kSortThreads = 1024, kBins = 2048;

struct Candidates {
  uint64_t key[kSortKeys];  // bits of d, then the id
  float p[kSortKeys];       // exp32(-d)
  int bins[kBins];
  uint64_t begin, end;  // of keys in the current part
  int count, kept;
  float sum, total;
  unsigned long long best;
};

// Ascending in shared memory; keys past `count` are all ones.
__device__ __forceinline__ void sort_keys(Candidates& c) {
  for (int i = c.count + threadIdx.x; i < kSortKeys; i += kSortThreads) c.key[i] = ~0ull;
  __syncthreads();
  int n = 2;
  while (n < c.count) n *= 2;
  for (int size = 2; size <= n; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      for (int i = threadIdx.x; i < n / 2; i += kSortThreads) {
        const int low = 2 * i - (i & (stride - 1)), high = low + stride;
        const bool up = (low & size) == 0;
        const uint64_t a = c.key[low], b = c.key[high];
        if ((a > b) == up) c.key[low] = b, c.key[high] = a;
      }
      __syncthreads();
    }
}

// Chooses c.end, so that at most kSortKeys keys and at least one (where any are left) lie in [c.begin, c.end).
__device__ __forceinline__ void next_part(Candidates& c, const float* d, int vocab) {
  uint64_t prefix = 0;  // of keys that this level counts, shifted by `shift` + 11
  for (int shift = 52;; shift -= 11) {
    for (int i = threadIdx.x; i < kBins; i += kSortThreads) c.bins[i] = 0;
    __syncthreads();
    const int width = shift < 0 ? 11 + shift : 11, at = shift < 0 ? 0 : shift;
    for (int id = threadIdx.x; id < vocab; id += kSortThreads) {
      const float x = d[id];
      const uint64_t key = static_cast<uint64_t>(float_bits(x)) << 32 | static_cast<uint32_t>(id);
      if (x <= kSampleReach && key >= c.begin && (shift == 52 || key >> (at + width) == prefix))
        atomicAdd(&c.bins[key >> at & ((1u << width) - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int sum = 0, bin = 0;
      while (bin < 1 << width && sum + c.bins[bin] <= kSortKeys) sum += c.bins[bin++];
      c.count = sum;
      c.kept = bin;
      c.end = bin == 1 << width ? (shift == 52 ? ~0ull : (prefix + 1) << (at + width))
                                : (prefix << width | static_cast<uint64_t>(bin)) << at;
    }
    __syncthreads();
    if (c.count > 0 || c.kept == 1 << width) return;
    prefix = prefix << width | static_cast<uint64_t>(c.kept);
    __syncthreads();
  }
}

// Sorts the part's keys and their probabilities; false when none are left.
__device__ __forceinline__ bool load_part(Candidates& c, const float* d, int vocab) {
  next_part(c, d, vocab);
  if (c.count == 0) return false;
  __syncthreads();
  if (threadIdx.x == 0) c.count = 0;
  __syncthreads();
  for (int id = threadIdx.x; id < vocab; id += kSortThreads) {
    const float x = d[id];
    const uint64_t key = static_cast<uint64_t>(float_bits(x)) << 32 | static_cast<uint32_t>(id);
    if (x <= kSampleReach && key >= c.begin && key < c.end) c.key[atomicAdd(&c.count, 1)] = key;
  }
  __syncthreads();
  sort_keys(c);
  for (int i = threadIdx.x; i < c.count; i += kSortThreads) c.p[i] = exp32(-bits_float(static_cast<uint32_t>(c.key[i] >> 32)));
  __syncthreads();
  return true;
}

__device__ __forceinline__ float gumbel_of(const SampleRowInputs& row, int id) {
  uint32_t words[4];
  philox(row.p.seed, row.position, static_cast<uint64_t>(id) / 4, words);
  return gumbel32(words[id % 4]);
}

// Walks through the candidates in order, up to `most` of them, until their running sum reaches `target`. With `race` the
// best of those walked over is left in c.best. c.sum is the running sum's end.
__device__ __forceinline__ void walk(Candidates& c, const SampleRowInputs& row, const float* d, int most, float target, bool race) {
  __syncthreads();
  if (threadIdx.x == 0) c.begin = 0, c.sum = 0.0f;
  __syncthreads();
  int left = most;
  while (left > 0 && load_part(c, d, row.vocab)) {
    if (threadIdx.x == 0) {
      const int n = min(c.count, left);
      float sum = c.sum;
      int i = 0;
      while (i < n) {
        sum += c.p[i++];
        if (sum >= target) break;
      }
      c.sum = sum, c.kept = i;
    }
    __syncthreads();
    const int kept = c.kept;
    const bool reached = c.sum >= target;
    for (int i = threadIdx.x; race && i < kept; i += kSortThreads) {
      const int id = static_cast<int>(c.key[i] & 0xffffffffu);
      if (c.p[i] >= row.p.min_p)
        atomicMax(&c.best, choice_key(gumbel_of(row, id) - bits_float(static_cast<uint32_t>(c.key[i] >> 32)), id));
    }
    left -= kept;
    if (reached) break;
    __syncthreads();
    if (threadIdx.x == 0) c.begin = c.end;
    __syncthreads();
  }
  __syncthreads();
}

}  // namespace strata
