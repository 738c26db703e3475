// rope_store: queries and keys, normed by heads where they have norm weights, rotated by the row's position; keys and values to their
// cell of the pool. A warp a (row, head of queries, keys or values). Keys go to k_out too, where it is given, before they are turned
// for 4-bit cells; queries are turned where keys are.
#include "kv_store.cuh"
#include "rope.cuh"
#include "step.cuh"

using namespace strata;

extern "C" __global__ void rope_store(const int* live, const int* positions, const int* sequences, const int* page_table,
                                      const float* table, const float* q, const float* k, const float* v, const float* q_weight,
                                      const float* k_weight, float* q_out, float* k_out, void* k_pool, void* v_pool,
                                      unsigned short* k_scales, unsigned short* v_scales, uint32_t* faults, int heads, int kv_heads,
                                      int dim, int rotary, int style, int max_positions, int pages_per_seq, int k_type, int v_type,
                                      int num_pages, int rows, float q_eps, float k_eps) {
  STRATA_DYNAMIC_SHARED(shared);
  float* x = reinterpret_cast<float*>(shared) + warp_id() * dim;
  dependency_launch();
  dependency_wait();
  const int each = heads + 2 * kv_heads, unit = blockIdx.x * (blockDim.x / 32) + warp_id(), row = min(unit / each, rows - 1);
  const int part = unit % each, position = positions[row], sequence = sequences[row];  // with the values: one wait
  const bool query = part < heads, value = part >= heads + kv_heads;
  const int head = query ? part : part - heads - (value ? kv_heads : 0);
  const size_t at = (static_cast<size_t>(row) * (query ? heads : kv_heads) + head) * dim;
  const float* from = (query ? q : value ? v : k) + at;
  Held held;
  held.load(from, dim);
  if (unit / each >= *live) return;
  const Rope rope = {table, rotary, style, max_positions};
  if (position < 0 || position >= max_positions) {
    report(faults, kFaultRange);
    return;
  }
  if (query) {
    take(held, from, q_weight, dim, q_eps, x);
    rope.turn(x, position);
    if (k_type == kKvNibbles) turn_groups(x, dim, kv_group(dim), turn_factor(kv_group(dim)), x);
    for (int i = lane_id(); i < dim; i += 32) q_out[at + i] = x[i];
    return;
  }
  const int page = page_id(page_table, pages_per_seq, num_pages, sequence, position / kPageCells);
  take(held, from, value ? nullptr : k_weight, dim, k_eps, x);
  if (!value) {
    rope.turn(x, position);
    for (int i = lane_id(); k_out != nullptr && i < dim; i += 32) k_out[at + i] = x[i];
  }
  if (page < 0) {
    report(faults, kFaultRange);
    return;
  }
  const int group = kv_group(dim), type = value ? v_type : k_type;
  if (type == kKvNibbles) turn_groups(x, dim, group, turn_factor(group), x);
  const CellStore store = {k_pool, v_pool, k_scales, v_scales, {}, kv_heads, dim};
  for (int g = 0; g < dim; g += group)
    if (!store.put(x + g, value, type, page, head, position % kPageCells, g, min(group, dim - g), group)) report(faults, kFaultNonFinite);
}
