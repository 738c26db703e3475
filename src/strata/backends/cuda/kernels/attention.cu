// attention: row r attends to cells 0 .. positions[r] of its sequence (the last `window` of them, when not 0).
// Macros: STRATA_KV (pool type), STRATA_HEADS (query heads a thread block takes). Grid: (split workers, groups of heads, rows from
// `row0` on); workers of a row take its splits in turn, and the last of them to end joins them.
#include "attention.cuh"

using namespace strata;

extern "C" __global__ void __launch_bounds__(256) attention(
    const int* live, const int* positions, const int* sequences, const int* page_table, const float* q, const void* k_pool,
    const void* v_pool, const unsigned short* k_scales, const unsigned short* v_scales, float* out, float* results, uint32_t* arrived,
    uint32_t* faults, int heads, int kv_heads, int head_dim, int pages_per_seq, int window, int num_pages, int row0, int max_splits,
    float scale) {
  constexpr int H = STRATA_HEADS;
  __shared__ SplitScratch<H> s;
  __shared__ bool last_block;
  STRATA_DYNAMIC_SHARED(shared);
  float* queries = reinterpret_cast<float*>(shared);  // [H][head_dim]
  dependency_launch();
  dependency_wait();
  const int row = row0 + blockIdx.z;
  if (row >= *live) return;
  const int group = heads / kv_heads, parts = (group + H - 1) / H;
  const int kv_head = blockIdx.y / parts, head = kv_head * group + blockIdx.y % parts * H;
  const int count = min(H, (kv_head + 1) * group - head);
  const int position = positions[row], sequence = sequences[row];
  if (position < 0) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
    return;
  }
  const int first_cell = window > 0 ? max(position - window + 1, 0) : 0;
  const int first = first_cell / kAttentionSplit, last = position / kAttentionSplit;
  const KvPools kv = {k_pool, v_pool, k_scales, v_scales, kv_heads, head_dim};
  const size_t per_row = static_cast<size_t>(heads) * max_splits;
  float* mine = results + blockIdx.z * per_row * (head_dim + 2);
  const SplitResults r = {mine, mine + per_row, mine + 2 * per_row, max_splits, head_dim};
  for (int i = threadIdx.x; i < count * head_dim; i += kAttentionThreads)
    queries[i] = q[(static_cast<size_t>(row) * heads + head) * head_dim + i];
  for (int split = first + blockIdx.x; split <= last; split += gridDim.x) {
    const int cell = split * kAttentionSplit;
    const int begin = max(first_cell - cell, 0), end = min(position + 1 - cell, kAttentionSplit);
    bool found = true;
    if (threadIdx.x < kAttentionSplit) {
      const int p = (cell + static_cast<int>(threadIdx.x)) / kPageCells;
      const bool seen = static_cast<int>(threadIdx.x) >= begin && static_cast<int>(threadIdx.x) < end;
      const int page = seen ? page_id(page_table, pages_per_seq, num_pages, sequence, p) : 0;
      found = page >= 0;
      s.cell[threadIdx.x] = page * kPageCells + static_cast<int>(threadIdx.x) % kPageCells;
    }
    if (__syncthreads_or(!found)) {
      if (threadIdx.x == 0) report(faults, kFaultRange);
      break;
    }
    split_scores<STRATA_KV, H>(s, queries, kv, kv_head, count, begin, end, scale);
    split_softmax(s, count, begin, end);
    split_values<STRATA_KV, H>(s, kv, kv_head, count, begin, end, r, head, split - first);
    __syncthreads();
  }
  __threadfence();
  __syncthreads();
  const int workers = min(static_cast<int>(gridDim.x), last - first + 1);
  if (static_cast<int>(blockIdx.x) >= workers) return;
  if (threadIdx.x == 0) {
    uint32_t* counter = arrived + row * gridDim.y + blockIdx.y;
    last_block = atomicAdd(counter, 1u) == static_cast<uint32_t>(workers - 1);
    if (last_block) *counter = 0;
  }
  __syncthreads();
  if (!last_block) return;
  __threadfence();
  for (int h = head; h < head + count; ++h)
    join_splits(r, h, 0, last - first, out + (static_cast<size_t>(row) * heads + h) * head_dim);
}
