// What attention takes, in one launch: queries and keys normed and turned, keys and values stored, index queries and keys. A warp a
// head of a row. Macros: STRATA_KV (pool type; of values STRATA_V, where it is another), STRATA_HEAD_DIM, STRATA_RATIO (cells of a group
// that may lie in a slot besides; 0: none does).
#include "ahead.cuh"
#include "index.cuh"
#include "kv_store.cuh"

using namespace strata;

#ifndef STRATA_V
#define STRATA_V STRATA_KV
#endif
#ifndef STRATA_RATIO
#define STRATA_RATIO 0
#endif

namespace {
constexpr int kHeadDim = STRATA_HEAD_DIM, kWarps = 4, kGroup = kHeadDim < kKvGroup ? kHeadDim : kKvGroup;
}  // namespace

// q_and_gate [rows, heads, 2 * head_dim]: a query, then a gate; index_x 0: no index. Shared memory: float [kWarps][room].
extern "C" __global__ void __launch_bounds__(32 * kWarps) attention_inputs(
    const int* live, const int* positions, const int* sequences, const int* page_table, const int* rope_positions, const float* table,
    const int* axes, const float* q_and_gate, const float* q_norm, float* q, const float* k, const float* k_norm, const float* v, void* k_pool,
    void* v_pool, unsigned short* k_scales, unsigned short* v_scales, void* k_slots, void* v_slots, unsigned short* k_slot_scales,
    unsigned short* v_slot_scales, const int* slot_table, const float* index_q, const float* index_q_norm, float* index_q_out,
    const float* index_x, const float* index_norm, const int* cells, float* raw, float* pooled, int heads, int kv_heads, int rotary,
    int max_positions, int pages_per_seq, int num_pages, int index_heads, int index_dim, int ratio, int slots, int room, float eps,
    uint32_t* faults, const uint8_t* ahead,
    uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  float* mine = reinterpret_cast<float*>(shared) + warp_id() * room;
  ask_ahead(ahead, ahead_bytes);
  dependency_settled();  // the step's inputs
  const StepRows rows{positions, sequences, *live, slots};
  const int row = blockIdx.y;
  int u = blockIdx.x * kWarps + warp_id();
  if (row >= rows.live) return dependency_wait();
  const Rotary r{table, axes, rotary / 2, max_positions};
  const int* place = rope_positions + row * 3;
  if (!r.valid(place)) return dependency_wait(), report(faults, kFaultRange);
  const Angle angle(r, place, lane_id());
  const int position = positions[row];
  const int page = position < 0 ? -1 : page_id(page_table, pages_per_seq, num_pages, sequences[row], position / kPageCells);
  dependency_wait();
  dependency_launch();
  if (u < heads) {
    const size_t head = static_cast<size_t>(row) * heads + u;
    float* to = q + head * kHeadDim;
    norm_rotate(q_and_gate + head * 2 * kHeadDim, q_norm, kHeadDim, eps, r, place, angle, STRATA_KV == kKvNibbles ? mine : to);
    if (STRATA_KV != kKvNibbles) return;
    __syncwarp();
    return turn_groups(mine, kHeadDim, kGroup, turn_factor(kGroup), to);
  }
  u -= heads;
  if (u < 2 * kv_heads) {
    const int head = u % kv_heads;
    const bool is_value = u >= kv_heads;
    if (page < 0) return report(faults, kFaultRange);
    const size_t from = (static_cast<size_t>(row) * kv_heads + head) * kHeadDim;
    const float* x = v + from;
    if (!is_value) {
      norm_rotate(k + from, k_norm, kHeadDim, eps, r, place, angle, mine);
      __syncwarp();
      x = mine;
    }
    if ((is_value ? STRATA_V : STRATA_KV) == kKvNibbles) {
      turn_groups(x, kHeadDim, kGroup, turn_factor(kGroup), mine);
      x = mine;
    }
    KvSlots resident = {};
    if (STRATA_RATIO > 0) resident = {k_slots, v_slots, k_slot_scales, v_slot_scales, slot_table, STRATA_RATIO};
    const CellStore store = {k_pool, v_pool, k_scales, v_scales, resident, kv_heads, kHeadDim};
    bool finite = true;
    for (int i = 0; i < kHeadDim; i += kGroup)
      finite &= store.put(x + i, is_value, is_value ? STRATA_V : STRATA_KV, page, head, position % kPageCells, i, kGroup, kGroup);
    if (!finite) report(faults, kFaultNonFinite);
    return;
  }
  u -= 2 * kv_heads;
  if (index_x == nullptr) return;
  if (u < index_heads) {
    const size_t head = (static_cast<size_t>(row) * index_heads + u) * index_dim;
    return norm_rotate(index_q + head, index_q_norm, index_dim, eps, r, place, angle, index_q_out + head);
  }
  if (u > index_heads) return;
  const IndexKeys keys{rows, page_table, rope_positions, cells, index_x, index_norm, raw, pooled, r, index_dim, ratio,
                       pages_per_seq, num_pages, eps};
  keys.keep(row, mine, faults);
}
