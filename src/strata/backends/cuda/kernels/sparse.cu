// sparse_attention: a row attends to the cells of its selected blocks, ascending, then to those after the last complete block; splits
// of 256 are by index in that list. Macros: STRATA_KV (pool type; of values STRATA_V, where it is another), STRATA_HEADS (query heads a
// thread block takes), STRATA_DIM (values a head), STRATA_GATED (1: heads are gated and become q8, 0: they go to `out`), STRATA_TURN (1:
// heads are turned first, ops/hadamard.py), STRATA_SLOTS (1: groups of cells may lie in slots). Grid: (splits, groups of heads, rows from `row0` on);
// the last thread block of a row's heads to end joins their splits.
#include "ahead.cuh"
#include "hadamard.cuh"
#include "op.cuh"
#include "split.cuh"
#include "step.cuh"

using namespace strata;

#ifndef STRATA_V
#define STRATA_V STRATA_KV
#endif
#ifndef STRATA_TURN
#define STRATA_TURN 0
#endif
#ifndef STRATA_SLOTS
#define STRATA_SLOTS 0
#endif

namespace {

constexpr int H = STRATA_HEADS, D = STRATA_DIM;
using Work = Split<STRATA_KV, STRATA_V, H, D, STRATA_SLOTS != 0>;

// The row's list of cells.
struct Cells {
  const int* selected;
  int kept, complete, total, ratio;  // cells from blocks; where the rest begins; all; cells of a block
  bool all;                          // every block is selected

  __device__ __forceinline__ Cells(const int* blocks_of_row, int position, int budget, int cells) {
    const int blocks = (position + 1) / cells;
    selected = blocks_of_row, ratio = cells, all = blocks <= budget;
    kept = min(blocks, budget) * ratio, complete = blocks * ratio, total = kept + (position + 1 - complete);
  }
  __device__ __forceinline__ int at(int i) const {
    if (all) return i;
    return i < kept ? selected[i / ratio] * ratio + i % ratio : complete + (i - kept);
  }
};

struct Output {
  float* out;
  const float* q_and_gate;  // [rows, heads, 2 D]: a query, then a gate
  int8_t* q;
  float* d;
  int16_t* sums;
  uint32_t* faults;

  // `values` [heads][D] in shared memory, of a row's heads from flat position `at` on.
  __device__ __forceinline__ void put(float* values, int heads, size_t at) const {
    __syncthreads();
    if (STRATA_TURN) {
      for (int h = warp_id(); h < heads; h += kSplitThreads / 32) turn_groups(values + h * D, D, Work::kGroup, turn_factor(Work::kGroup), values + h * D);
      __syncthreads();
    }
    for (int i = threadIdx.x; i < heads * D; i += kSplitThreads) {
#if STRATA_GATED
      const float v = values[i] * sigmoid32(q_and_gate[2 * at + i / D * 2 * D + D + i % D]);
      if (!finite32(v)) report(faults, kFaultNonFinite);
      const size_t block = (at + i) / 32;
      quantize_block(v, q + block * 32, d + block, sums + 2 * block);
#else
      out[at + i] = values[i];
#endif
    }
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256, 2) sparse_attention(
    const int* live, const int* positions, const int* sequences, const int* page_table, const float* q, const int* selected,
    const void* k_pool, const void* v_pool, const unsigned short* k_scales, const unsigned short* v_scales, void* k_slots, void* v_slots,
    unsigned short* k_slot_scales, unsigned short* v_slot_scales, const int* slot_table, float* out, const float* q_and_gate, int8_t* out_q, float* out_d, int16_t* out_sums, float* results, uint32_t* arrived, int heads, int kv_heads,
    int pages_per_seq, int num_pages, int ratio, int budget, int row0, int max_splits, float scale, uint32_t* faults, const uint8_t* ahead,
    uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ bool last_block;
  auto& s = *reinterpret_cast<Work::Room*>(shared);
  trace(0);
  ask_ahead(ahead, ahead_bytes);
#if STRATA_GATED
  dependency_settled();  // the step's inputs and, but for the selection, all that the launch before the last one wrote
#else
  dependency_wait();
  dependency_launch();
#endif
  const int row = row0 + blockIdx.z, rows = *live, position = positions[row], sequence = sequences[row];  // one wait for three
  if (row >= rows) return dependency_wait();
  if (position < 0) {
    dependency_wait();
    if (threadIdx.x == 0) report(faults, kFaultRange);
    return;
  }
  const Cells cells(selected + static_cast<size_t>(row) * budget, position, budget, ratio);
  const int splits = (cells.total + kAttentionSplit - 1) / kAttentionSplit, split = blockIdx.x, own = threadIdx.x;
  if (split >= splits) return dependency_wait();
  const int group = heads / kv_heads, parts = (group + H - 1) / H;
  const int kv_head = blockIdx.y / parts, head = kv_head * group + blockIdx.y % parts * H;
  const int count = min(H, (kv_head + 1) * group - head), end = min(cells.total - split * kAttentionSplit, kAttentionSplit);
  const SplitResults<D> r(results + static_cast<size_t>(blockIdx.z) * heads * max_splits * (D + 2), heads, max_splits);
  const Output output = {out, q_and_gate, out_q, out_d, out_sums, faults};
  const size_t at = (static_cast<size_t>(row) * heads + head) * D;
  for (int i = threadIdx.x; i < H * D; i += kSplitThreads) (&s.query[0][0])[i] = i < count * D ? q[at + i] : 0.0f;
#if STRATA_GATED
  if (!cells.all) dependency_wait(), dependency_launch();
#endif
  const int cell = own < end ? cells.at(split * kAttentionSplit + own) : 0;
  const int page = cell < 0 ? -1 : page_id(page_table, pages_per_seq, num_pages, sequence, cell / kPageCells);
  s.cell[own] = (max(page, 0) * kv_heads + kv_head) * kPageCells + cell % kPageCells;
#if STRATA_GATED
  if (cells.all) dependency_wait(), dependency_launch();
#endif
  const KvSlots slots = {k_slots, v_slots, k_slot_scales, v_slot_scales, slot_table, ratio};
  const int slot = STRATA_SLOTS && page >= 0 ? slots.of(page, cell % kPageCells) : -1;
  if (slot >= 0) s.cell[own] = ~((slot * kv_heads + kv_head) * ratio + cell % ratio);
  trace(2);
  float* values = &s.query[0][0];
  if (__syncthreads_or(page < 0)) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
  } else {
    Work work = {s, k_pool, v_pool, k_scales, v_scales, 0, end, slots};
    trace(3);
    work.scores(scale);
    trace(4);
    work.load_values();
    work.softmax(count);
    trace(5);
    if (splits == 1) {
      work.value_sums(count, [&](int h, int d, float o) { values[h * D + d] = div32(fma32(o, 1.0f, 0.0f), fma32(s.sum[h], 1.0f, 0.0f)); });
      trace(6);
      output.put(values, count, at);
      trace(7);
      return;
    }
    work.value_sums(count, [&](int h, int d, float o) { r.value[r.index(head + h, split) * D + d] = o; });
    if (own < count) r.top[r.index(head + own, split)] = s.top[own], r.sum[r.index(head + own, split)] = s.sum[own];
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* counter = arrived + blockIdx.z * gridDim.y + blockIdx.y;
    last_block = atomicAdd(counter, 1u) == static_cast<uint32_t>(splits - 1);
    if (last_block) *counter = 0;
  }
  __syncthreads();
  if (!last_block) return;
  __threadfence();
  Join<H, D>::run(r, head, count, splits, &s.lanes[0][0][0], [&](int h, int d, float o) { values[h * D + d] = o; });
  output.put(values, count, at);
}
