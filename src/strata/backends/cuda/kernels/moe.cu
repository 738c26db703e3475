// Routed experts of a step's (row, expert) pairs, grouped by expert: a weight block is decoded once for up to STRATA_ROWS
// pairs. An expert's bytes are found through a table of addresses.
//
// Macros: STRATA_TYPE and STRATA_UP (formats of the planes), STRATA_ROWS (pairs at a time), STRATA_SEGMENTS, STRATA_AHEAD (see
// product.cuh). A thread block takes one expert and kFeatures features. Grid (features, groups): y is a pair's place in the order of
// experts, of which the first of an expert's pairs counts, or (by_expert) the expert.
#include "lanes.cuh"
#include "op.cuh"
#include "product.cuh"
#include "step.cuh"

#ifndef STRATA_UP
#define STRATA_UP STRATA_TYPE
#endif

using namespace strata;

namespace {

constexpr int M = STRATA_ROWS, kSegs = STRATA_SEGMENTS;
constexpr int kWarps = kSegs < 4 ? 4 : kSegs, kThreads = 32 * kWarps;
constexpr int kFeatures = kWarps * (32 / kSegs);  // a multiple of 32

struct Pairs {
  int expert, begin, end;  // of the pairs sorted by expert
};

// The thread block's pairs: none where they belong to another one.
__device__ __forceinline__ Pairs find_pairs(const int* offsets, int experts, int by_expert) {
  const int y = blockIdx.y;
  if (by_expert) return {y, offsets[y], offsets[y + 1]};
  __shared__ int found;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads)
    if (offsets[e] == y && offsets[e + 1] > y) found = e;
  __syncthreads();
  if (found < 0) return {0, 0, 0};
  return {found, y, offsets[found + 1]};
}

struct Rows {
  const float* x;
  const int8_t* q;
  const float* d;
  const int16_t* sums;
};

// A warp's scratch, then activations, then the planes' values [2][M][kFeatures].
struct Shared {
  uint32_t *table, *up_table;
  float *scratch, *values;
  StagedRows rows;

  __device__ __forceinline__ Shared(uint8_t* at, int k) {
    table = reinterpret_cast<uint32_t*>(at);
    up_table = STRATA_TYPE == STRATA_UP ? table : table + table_words<STRATA_TYPE>();
    scratch = reinterpret_cast<float*>(up_table + table_words<STRATA_UP>());
    values = scratch + kThreads * M;
    rows = staged_rows<M, kSegs>(reinterpret_cast<uint8_t*>(values + 2 * M * kFeatures), k);
  }
  template <QuantType T> static constexpr __device__ __forceinline__ int table_words() {
    if constexpr (Layout<T>::quantised) return Packed<T>::kTableWords;
    return 0;
  }
};

template <QuantType T> __device__ __forceinline__ void fill_table(uint32_t* table) {
  if constexpr (Layout<T>::quantised) Packed<T>::template fill<1>(table);
}

__device__ __forceinline__ void stage_pairs(const StagedRows& a, const Rows& in, int k, const int (&row)[M], int count) {
  for (int i = threadIdx.x; i < M * (k / 16); i += kThreads) {
    const int m = i / (k / 16), part = i % (k / 16), b = part / 2;
    if (m >= count) break;
    const int segment = static_cast<int>((static_cast<int64_t>(b + 1) * kSegs - 1) / a.blocks);
    *reinterpret_cast<uint4*>(a.codes + m * a.row_words + part * 4 + kSegmentPad * segment) =
        *reinterpret_cast<const uint4*>(in.q + static_cast<size_t>(row[m]) * k + part * 16);
  }
  for (int i = threadIdx.x; i < M * a.blocks; i += kThreads) {
    const int m = i / a.blocks;
    if (m >= count) break;
    const size_t at = static_cast<size_t>(row[m]) * a.blocks + i % a.blocks;
    a.scales[i] = in.d[at], a.sums[i] = reinterpret_cast<const uint32_t*>(in.sums)[at];
  }
}

// values[m][f] = features [first, first + kFeatures) of the plane times rows m < count, times scale.
template <QuantType T>
__device__ __forceinline__ void plane(const uint8_t* w, int n, int k, int first, const Rows& in, const int (&row)[M], int count,
                                      const Shared& s, const uint32_t* table, float scale, float* values) {
  if constexpr (Layout<T>::quantised) {
    const int mine = first + warp_id() * (32 / kSegs);
    SegmentChain<T, M, kSegs, STRATA_AHEAD, STRATA_LENGTH> chain(w, n, k / kBlock, min(mine + lane_id() / kSegs, n - 1));
    chain.load_first();
    float part[M];
    chain.run(table, s.rows, part);
    add_segments<M, kSegs>(part, s.scratch + warp_id() * M * 32, [&](int r, int m, float total) {
      values[m * kFeatures + warp_id() * (32 / kSegs) + r] = total * scale;
    });
  } else {
    const int j = threadIdx.x % 4;
    for (int f = threadIdx.x / 4; f < kFeatures; f += kThreads / 4) {
      const uint8_t* weights = w + (static_cast<size_t>(min(first + f, n - 1)) * k + 8 * j) * Layout<T>::bytes;
      const int whole = k / 32, rest = k % 32;
      float acc[M][8] = {};
      for (int i = 0; i < whole; ++i) {
        Eight<T> eight;
        eight.load(weights + static_cast<size_t>(32 * i) * Layout<T>::bytes);
        float v[8];
        eight.floats(v);
#pragma unroll
        for (int m = 0; m < M; ++m)
          if (m < count) fma8(v, in.x + static_cast<size_t>(row[m]) * k + 32 * i + 8 * j, acc[m]);
      }
      for (int e = 0; e < 8 && 8 * j + e < rest; ++e) {
        const float v = one_value<T>(weights + static_cast<size_t>(32 * whole + e) * Layout<T>::bytes);
#pragma unroll
        for (int m = 0; m < M; ++m)
          if (m < count) acc[m][e] = fma32(v, in.x[static_cast<size_t>(row[m]) * k + 32 * whole + 8 * j + e], acc[m][e]);
      }
#pragma unroll
      for (int m = 0; m < M; ++m) {
        const float total = quad_tree_sum(acc[m]);
        if (j == 0) values[m * kFeatures + f] = total * scale;
      }
    }
  }
}

// Pairs at `at` of the sorted ones: their activation rows, `divisor` pairs a row.
__device__ __forceinline__ int next_rows(const int* pairs, const Pairs& mine, int at, int divisor, int (&pair)[M], int (&row)[M]) {
  const int count = min(M, mine.end - at);
#pragma unroll
  for (int m = 0; m < M; ++m) pair[m] = m < count ? pairs[at + m] : 0, row[m] = pair[m] / divisor;
  return count;
}

}  // namespace

extern "C" {

// out[p] = silu(gate x[p / k]) * (up x[p / k]), float [pairs, n], or q8 where out_d is given.
__global__ void __launch_bounds__(kThreads) expert_gate_up(
    const int* pairs, const int* offsets, const float* x, const int8_t* q, const float* d, const int16_t* sums, const uint64_t* gate,
    const uint64_t* up, const float* gate_scale, const float* up_scale, void* out, float* out_d, int16_t* out_sums, int hidden, int n,
    int experts, int top, int by_expert, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  const Shared s(shared, hidden);
  fill_table<STRATA_TYPE>(s.table);
  if (STRATA_TYPE != STRATA_UP) fill_table<STRATA_UP>(s.up_table);
  dependency_wait();
  dependency_launch();
  const Pairs mine = find_pairs(offsets, experts, by_expert);
  const Rows in{x, q, d, sums};
  const int first = blockIdx.x * kFeatures;
  for (int at = mine.begin; at < mine.end; at += M) {
    int pair[M], row[M];
    const int count = next_rows(pairs, mine, at, top, pair, row);
    if (q != nullptr) stage_pairs(s.rows, in, hidden, row, count);
    __syncthreads();
    const float g = gate_scale ? gate_scale[mine.expert] : 1.0f, u = up_scale ? up_scale[mine.expert] : 1.0f;
    plane<STRATA_TYPE>(reinterpret_cast<const uint8_t*>(gate[mine.expert]), n, hidden, first, in, row, count, s, s.table, g, s.values);
    plane<STRATA_UP>(reinterpret_cast<const uint8_t*>(up[mine.expert]), n, hidden, first, in, row, count, s, s.up_table, u,
                     s.values + M * kFeatures);
    __syncthreads();
    bool finite = true;
    for (int i = warp_id(); i < count * (kFeatures / 32); i += kWarps) {
      const int m = i / (kFeatures / 32), f = i % (kFeatures / 32) * 32;
      if (first + f >= n) continue;
      const float* v = s.values + m * kFeatures + f + lane_id();
      const bool in_row = first + f + lane_id() < n;
      const float value = silu32(v[0]) * v[M * kFeatures];
      int p = 0;
#pragma unroll
      for (int j = 0; j < M; ++j)
        if (j == m) p = pair[j];
      const size_t to = static_cast<size_t>(p) * n + first + f;
      if (out_d == nullptr) {
        if (in_row) static_cast<float*>(out)[to + lane_id()] = value;
      } else {
        finite &= finite32(value);
        quantize_block(value, static_cast<int8_t*>(out) + to, out_d + to / 32, out_sums + to / 16);
      }
    }
    if (!finite) report(faults, kFaultNonFinite);
    __syncthreads();
  }
}

// out[p] = down x[p], float [pairs, n].
__global__ void __launch_bounds__(kThreads) expert_down(const int* pairs, const int* offsets, const float* x, const int8_t* q, const float* d,
                                                        const int16_t* sums, const uint64_t* down, const float* down_scale, float* out, int k,
                                                        int n, int experts, int by_expert) {
  STRATA_DYNAMIC_SHARED(shared);
  const Shared s(shared, k);
  fill_table<STRATA_TYPE>(s.table);
  dependency_wait();
  dependency_launch();
  const Pairs mine = find_pairs(offsets, experts, by_expert);
  const Rows in{x, q, d, sums};
  const int first = blockIdx.x * kFeatures;
  for (int at = mine.begin; at < mine.end; at += M) {
    int pair[M], row[M];
    const int count = next_rows(pairs, mine, at, 1, pair, row);
    if (q != nullptr) stage_pairs(s.rows, in, k, row, count);
    __syncthreads();
    plane<STRATA_TYPE>(reinterpret_cast<const uint8_t*>(down[mine.expert]), n, k, first, in, row, count, s, s.table,
                       down_scale ? down_scale[mine.expert] : 1.0f, s.values);
    __syncthreads();
#pragma unroll
    for (int m = 0; m < M; ++m)
      if (m < count)
        for (int f = threadIdx.x; f < kFeatures && first + f < n; f += kThreads)
          out[static_cast<size_t>(pair[m]) * n + first + f] = s.values[m * kFeatures + f];
    __syncthreads();
  }
}

}  // extern "C"
