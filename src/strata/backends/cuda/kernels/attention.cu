// attention: row r attends to cells 0 .. positions[r] of its sequence (the last `window` of them, when not 0). Macros: STRATA_KV (pool
// type; of values STRATA_V, where it is another), STRATA_TURN (1: heads are turned, ops/hadamard.py), STRATA_HEADS (query heads a thread block takes), STRATA_DIM (values a head). Grid: (split workers, groups of heads, rows from
// `row0` on); workers of a row take its splits in turn, and the last of them to end joins them. The result goes to `out` and, as int8
// blocks, to the planes out_q, out_d, out_sums: either may be null. STRATA_GATED (1: heads are gated before they become int8 blocks). STRATA_ROPE (1: of one row, what rope_store.cu does comes first: q, k
// and v are normed and rotated here, and the thread block with the newest cell stores it).
#include "hadamard.cuh"
#include "kv_store.cuh"
#include "op.cuh"
#include "rope.cuh"
#include "split.cuh"
#include "step.cuh"

using namespace strata;

#ifndef STRATA_V
#define STRATA_V STRATA_KV
#endif
#ifndef STRATA_TURN
#define STRATA_TURN 0
#endif
#ifndef STRATA_GATED
#define STRATA_GATED 0
#endif
#if STRATA_GATED
#define STRATA_GATE_ARG , const float *q_and_gate
#else
#define STRATA_GATE_ARG
#endif
#ifdef STRATA_ROPE
#define STRATA_ROPE_ARGS                                                                                                                  \
  , const float *table, const float *k, const float *v, const float *q_weight, const float *k_weight, int rotary, int style, int max_positions, \
      float q_eps, float k_eps
#else
#define STRATA_ROPE_ARGS
#endif

namespace {

constexpr int H = STRATA_HEADS, D = STRATA_DIM;
using Work = Split<STRATA_KV, STRATA_V, H, D>;

struct Output {
  float* out;
  int8_t* q;
  float* d;
  int16_t* sums;
  const float* q_and_gate;  // [rows, heads, 2 D]: a query, then a gate
  uint32_t* faults;

  // `values` [heads][D] in shared memory, of a row's heads from flat position `at` on.
  __device__ __forceinline__ void put(float* values, int heads, size_t at) const {
    __syncthreads();
    if (STRATA_TURN) {
      for (int h = warp_id(); h < heads; h += kSplitThreads / 32) turn_groups(values + h * D, D, Work::kGroup, turn_factor(Work::kGroup), values + h * D);
      __syncthreads();
    }
    for (int i = threadIdx.x; out != nullptr && i < heads * D; i += kSplitThreads) out[at + i] = values[i];
    if (q == nullptr) return;
    for (int b = warp_id(); b < heads * D / 32; b += kSplitThreads / 32) {
      float v = values[32 * b + lane_id()];
      if (STRATA_GATED) v *= sigmoid32(q_and_gate[2 * at + 32 * b / D * 2 * D + D + 32 * b % D + lane_id()]);
      const size_t block = at / 32 + b;
      if (!finite32(v)) report(faults, kFaultNonFinite);
      quantize_block(v, q + block * 32, d + block, sums + 2 * block);
    }
  }
};

// Heads of one row as they come: queries of a thread block, and its key and value.
struct Fresh {
  const float *q, *k, *v, *q_weight, *k_weight;
  float q_eps, k_eps;
  Rope rope;
  CellStore store;
  int kv_head, position;
  uint32_t* faults;

  // Queries to shared memory; the cell to its page, where that is not negative (one that is none is reported where cells are read).
  __device__ __noinline__ void take_heads(Work::Room& s, int count, int page) const {
    const int group = kv_group(D);
#pragma unroll 1
    for (int unit = warp_id(); unit < count + (page < 0 ? 0 : 2); unit += kSplitThreads / 32) {
      const bool query = unit < count, value = unit == count + 1;
      float* x = query ? s.query[unit] : &s.lanes[0][0][0] + (unit - count) * D;
      const float* from = query ? q + unit * D : value ? v : k;
      Held held;
      held.load(from, D);
      take(held, from, query ? q_weight : value ? nullptr : k_weight, D, query ? q_eps : k_eps, x);
      if (!value) rope.turn(x, position);
      for (int g = 0; !query && g < D; g += group)
        if (!store.put(x + g, value, value ? STRATA_V : STRATA_KV, page, kv_head, position % kPageCells, g, min(group, D - g), group))
          report(faults, kFaultNonFinite);
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 2) attention(
    const int* live, const int* positions, const int* sequences, const int* page_table, const float* q, const void* k_pool,
    const void* v_pool, const unsigned short* k_scales, const unsigned short* v_scales, float* out, int8_t* out_q, float* out_d,
    int16_t* out_sums, float* results, uint32_t* arrived, uint32_t* faults, int heads, int kv_heads, int pages_per_seq, int window,
    int num_pages, int row0, int max_splits, float scale STRATA_GATE_ARG STRATA_ROPE_ARGS) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ bool last_block;
  auto& s = *reinterpret_cast<Work::Room*>(shared);
  dependency_launch();
  dependency_wait();
  const int row = row0 + blockIdx.z, rows = *live, position = positions[row], sequence = sequences[row];  // one wait for three
  if (row >= rows) return;
  const int group = heads / kv_heads, parts = (group + H - 1) / H;
  const int kv_head = blockIdx.y / parts, head = kv_head * group + blockIdx.y % parts * H;
  const int count = min(H, (kv_head + 1) * group - head);
  if (position < 0) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
    return;
  }
  const int first_cell = window > 0 ? max(position - window + 1, 0) : 0;
  const int first = first_cell / kAttentionSplit, splits = position / kAttentionSplit - first + 1;
  const int workers = min(static_cast<int>(gridDim.x), splits);
  if (static_cast<int>(blockIdx.x) >= workers) return;
  const SplitResults<D> r(results + static_cast<size_t>(blockIdx.z) * heads * max_splits * (D + 2), heads, max_splits);
#if STRATA_GATED
  const float* gates = q_and_gate;
#else
  const float* gates = nullptr;
#endif
  const Output output = {out, out_q, out_d, out_sums, gates, faults};
  const size_t at = (static_cast<size_t>(row) * heads + head) * D;
#ifdef STRATA_ROPE
  if (position >= max_positions) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
    return;
  }
  const bool newest = (splits - 1) % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x);
  const Fresh fresh = {q + at, k + kv_head * D, v + kv_head * D, q_weight, k_weight, q_eps, k_eps, {table, rotary, style, max_positions},
                       {const_cast<void*>(k_pool), const_cast<void*>(v_pool), const_cast<unsigned short*>(k_scales),
                        const_cast<unsigned short*>(v_scales), {}, kv_heads, D}, kv_head, position, faults};
  fresh.take_heads(s, count, newest ? page_id(page_table, pages_per_seq, num_pages, sequence, position / kPageCells) : -1);
  for (int i = count * D + threadIdx.x; i < H * D; i += kSplitThreads) (&s.query[0][0])[i] = 0.0f;
  __syncthreads();
#else
  for (int i = threadIdx.x; i < H * D; i += kSplitThreads) (&s.query[0][0])[i] = i < count * D ? q[at + i] : 0.0f;
#endif
  for (int split = blockIdx.x; split < splits; split += gridDim.x) {
    const int cell = (first + split) * kAttentionSplit;
    const int begin = max(first_cell - cell, 0), end = min(position + 1 - cell, kAttentionSplit);
    const int own = threadIdx.x;
    const bool seen = own >= begin && own < end;
    const int page = seen ? page_id(page_table, pages_per_seq, num_pages, sequence, (cell + own) / kPageCells) : 0;
    s.cell[own] = (max(page, 0) * kv_heads + kv_head) * kPageCells + own % kPageCells;
    if (__syncthreads_or(page < 0)) {
      if (threadIdx.x == 0) report(faults, kFaultRange);
      break;
    }
    Work work = {s, k_pool, v_pool, k_scales, v_scales, begin, end, {}};
    work.scores(scale);
    work.load_values();
    work.softmax(count);
    if (splits == 1) {
      float* values = &s.query[0][0];
      work.value_sums(count, [&](int h, int d, float o) { values[h * D + d] = div32(fma32(o, 1.0f, 0.0f), fma32(s.sum[h], 1.0f, 0.0f)); });
      return output.put(values, count, at);
    }
    work.value_sums(count, [&](int h, int d, float o) { r.value[r.index(head + h, split) * D + d] = o; });
    if (own < count) r.top[r.index(head + own, split)] = s.top[own], r.sum[r.index(head + own, split)] = s.sum[own];
    __syncthreads();
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* counter = arrived + row * gridDim.y + blockIdx.y;
    last_block = atomicAdd(counter, 1u) == static_cast<uint32_t>(workers - 1);
    if (last_block) *counter = 0;
  }
  __syncthreads();
  if (!last_block) return;
  __threadfence();
  float* values = &s.query[0][0];
  Join<H, D>::run(r, head, count, splits, &s.lanes[0][0][0], [&](int h, int d, float o) { values[h * D + d] = o; });
  output.put(values, count, at);
}
