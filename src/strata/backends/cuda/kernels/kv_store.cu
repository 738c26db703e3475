// kv_store: each live row's keys and values to their cell of the pool. A warp a (row, head, key or value, group of values).
#include "kv_store.cuh"

using namespace strata;

extern "C" __global__ void kv_store(const int* live, const int* positions, const int* sequences, const int* page_table, const float* k,
                                    const float* v, void* k_pool, void* v_pool, unsigned short* k_scales, unsigned short* v_scales,
                                    void* k_slots, void* v_slots, unsigned short* k_slot_scales, unsigned short* v_slot_scales,
                                    const int* slot_table, uint32_t* faults, int kv_heads, int head_dim, int pages_per_seq, int k_type,
                                    int v_type, int num_pages, int ratio) {
  dependency_launch();
  dependency_wait();
  const CellStore store = {k_pool, v_pool, k_scales, v_scales, {k_slots, v_slots, k_slot_scales, v_slot_scales, slot_table, ratio},
                           kv_heads, head_dim};
  const int group = kv_group(head_dim), groups = (head_dim + group - 1) / group;
  const int unit = blockIdx.x * (blockDim.x / 32) + warp_id();
  const int part = unit % groups, which = unit / groups % 2, head = unit / groups / 2 % kv_heads, row = unit / groups / 2 / kv_heads;
  if (row >= *live) return;
  const int position = positions[row];
  const int page = position < 0 ? -1 : page_id(page_table, pages_per_seq, num_pages, sequences[row], position / kPageCells);
  if (page < 0) {
    report(faults, kFaultRange);
    return;
  }
  const float* x = (which ? v : k) + (static_cast<size_t>(row) * kv_heads + head) * head_dim + part * group;
  const int n = min(group, head_dim - part * group);
  if (!store.put(x, which, which ? v_type : k_type, page, head, position % kPageCells, part * group, n, group))
    report(faults, kFaultNonFinite);
}
