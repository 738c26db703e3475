// kv_stage (backends/cuda/kv_stage.py): one sequence's cells of a layer, those before a chunk of its prompt, from page-locked RAM to where
// the chunk's attention reads them: pages as the pool has them, in the sequence's order. The chunk's own cells are written there as
// they are stored. Groups are of `ratio` cells, counted over the sequence.
#include "kv.cuh"
#include "kv_copy.cuh"
#include "op.cuh"

using namespace strata;

// A bit for each group before the chunk that some row selected; a thread a row and place of its list. All rows are of one sequence.
extern "C" __global__ void __launch_bounds__(512) kv_wanted(const int* live, const int* positions, const int* sequences, const int* selected,
                                                            uint32_t* wanted, int pages, int ratio, int budget, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int u = blockIdx.x * 512 + threadIdx.x, row = u / budget, i = u % budget;
  if (row >= *live) return;
  const int first = positions[0], blocks = (positions[row] + 1) / ratio;
  if (i == 0 && (sequences[row] != sequences[0] || first < 0 || positions[row] < first || first % ratio != 0)) report(faults, kFaultRange);
  if (i >= min(blocks, budget)) return;
  const int group = blocks > budget ? selected[static_cast<size_t>(row) * budget + i] : i;
  if (group < 0 || group >= pages * (kPageCells / ratio)) return report(faults, kFaultRange);
  const uint32_t bit = 1u << group % 32;
  if (group < first / ratio && (__ldcg(wanted + group / 32) & bit) == 0) atomicOr(wanted + group / 32, bit);
}

namespace {

// The set bits of `mask` as runs of neighbours: calls copy(first, count).
template <class Copy> __device__ __forceinline__ void each_run(uint32_t mask, Copy copy) {
  while (mask != 0) {
    const int first = __ffs(static_cast<int>(mask)) - 1, free = __ffs(static_cast<int>(~(mask >> first)));
    const int count = free == 0 ? 32 - first : free - 1;
    copy(first, count);
    mask = first + count == 32 ? 0 : mask >> (first + count) << (first + count);
  }
}

}  // namespace

// Groups that `wanted` names, or all before the chunk where it is null; a warp a page's part (at most 32 groups) of a head's keys or
// values. taken [words]: parts of a word that are done; counters: groups copied, thread blocks that are done. All are zero again
// at the end. Null faults: pages may be gone, for the chunk was given up.
extern "C" __global__ void __launch_bounds__(256) kv_bring(
    const int* positions, const int* sequences, const int* page_table, uint32_t* wanted, uint32_t* taken, uint32_t* counters,
    unsigned long long* staged_bytes, const uint8_t* k_pool, const uint8_t* v_pool, const uint8_t* k_scales, const uint8_t* v_scales,
    uint8_t* k_stage, uint8_t* v_stage, uint8_t* k_stage_scales, uint8_t* v_stage_scales, int pages_per_seq, int num_pages, int ratio,
    int kv_heads, int k_bytes, int v_bytes, int k_scale_bytes, int v_scale_bytes, float ns_per_byte, uint32_t* faults) {
  __shared__ uint32_t copied;
  if (threadIdx.x == 0) copied = 0;
  dependency_wait();
  dependency_launch();
  const uint64_t start = global_timer();
  __syncthreads();
  const int known = min(positions[0], pages_per_seq * kPageCells) / ratio, sequence = sequences[0], per_page = kPageCells / ratio;
  const int piece = min(per_page, 32), parts = 2 * kv_heads, in_word = 32 / piece * parts, words = (known + 31) / 32;
  for (int u = blockIdx.x * 8 + warp_id(); u < words * in_word; u += gridDim.x * 8) {
    const int word = u / in_word, first = word * 32 + u % in_word / parts * piece, head = u % parts / 2;
    const bool value = u & 1;
    uint32_t mask = __shfl_sync(kFullWarp, wanted == nullptr ? 0xffffffffu : __ldcg(wanted + word), 0) >> first % 32;
    if (piece < 32) mask &= (1u << piece) - 1;
    if (known - first < 32) mask &= known > first ? (1u << (known - first)) - 1 : 0;
    const int page = mask == 0 ? -1 : page_id(page_table, pages_per_seq, num_pages, sequence, first / per_page);
    if (mask != 0 && page < 0 && faults != nullptr) report(faults, kFaultRange);
    if (page >= 0) {
      const int bytes = value ? v_bytes : k_bytes, scale = value ? v_scale_bytes : k_scale_bytes, begin = first % per_page * ratio;
      const size_t from = cell_offset(page, kv_heads, head, begin, 1), to = cell_offset(first / per_page, kv_heads, head, begin, 1);
      each_run(mask, [&](int g, int count) {
        const size_t in = from + g * ratio, out = to + g * ratio;
        copy_bytes((value ? v_stage : k_stage) + out * bytes, (value ? v_pool : k_pool) + in * bytes, count * ratio * bytes);
        if (scale > 0)
          copy_bytes((value ? v_stage_scales : k_stage_scales) + out * scale, (value ? v_scales : k_scales) + in * scale, count * ratio * scale);
      });
      if (lane_id() == 0 && u % parts == 0) atomicAdd(&copied, static_cast<uint32_t>(__popc(mask)));
    }
    if (wanted != nullptr && lane_id() == 0 && atomicAdd(taken + word, 1u) == static_cast<uint32_t>(in_word) - 1)
      __stcg(wanted + word, 0u), __stcg(taken + word, 0u);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicAdd(counters, copied);
  __threadfence();
  if (atomicAdd(counters + 1, 1u) != gridDim.x - 1) return;
  __threadfence();
  const unsigned long long nbytes = static_cast<unsigned long long>(__ldcg(counters)) * (ratio * kv_heads) *
                                    static_cast<unsigned>(k_bytes + v_bytes + k_scale_bytes + v_scale_bytes);
  atomicAdd(staged_bytes, nbytes);
  counters[0] = counters[1] = 0;
  while (ns_per_byte > 0.0f && static_cast<float>(global_timer() - start) < static_cast<float>(nbytes) * ns_per_byte) __nanosleep(100);
}
