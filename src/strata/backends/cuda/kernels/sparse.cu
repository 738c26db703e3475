// sparse_attention: a row attends to the cells of its selected blocks, ascending, then to those after the last complete block; splits
// of 256 are by index in that list. Macros: STRATA_KV (pool type), STRATA_HEADS (query heads a thread block takes), STRATA_GATED (1: heads
// are gated and become q8). Grid: (splits, groups of heads, rows from `row0` on); the last thread block of a row's heads to end joins
// their splits.
#include "attention.cuh"
#include "op.cuh"
#include "step.cuh"

using namespace strata;

namespace {

// The row's list of cells.
struct Cells {
  const int* selected;
  int kept, complete, total, ratio;  // cells from blocks; where the rest begins; all; cells of a block
  bool all;                          // every block is selected

  __device__ __forceinline__ Cells(const int* blocks_of_row, int position, int budget, int cells) {
    const int blocks = (position + 1) / cells;
    selected = blocks_of_row, ratio = cells;
    all = blocks <= budget;
    kept = min(blocks, budget) * ratio, complete = blocks * ratio, total = kept + (position + 1 - complete);
  }
  __device__ __forceinline__ int at(int i) const {
    if (all) return i;
    return i < kept ? selected[i / ratio] * ratio + i % ratio : complete + (i - kept);
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(256) sparse_attention(
    const int* live, const int* positions, const int* sequences, const int* page_table, const float* q, const int* selected,
    const void* k_pool, const void* v_pool, const unsigned short* k_scales, const unsigned short* v_scales, float* out, float* results,
    uint32_t* arrived, int heads, int kv_heads, int head_dim, int pages_per_seq, int num_pages, int ratio, int budget, int row0,
    int max_splits, float scale, uint32_t* faults
#if STRATA_GATED
    , const float* q_and_gate, int8_t* q8, float* q8_d, int16_t* q8_sums
#endif
) {
  constexpr int H = STRATA_HEADS;
  __shared__ SplitScratch<H> s;
  __shared__ bool last_block;
  STRATA_DYNAMIC_SHARED(shared);
  float* queries = reinterpret_cast<float*>(shared);  // [H][head_dim]
  dependency_wait();
  dependency_launch();
  const int row = row0 + blockIdx.z;
  if (row >= *live) return;
  const int position = positions[row];
  if (position < 0) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
    return;
  }
  const Cells cells(selected + static_cast<size_t>(row) * budget, position, budget, ratio);
  const int splits = (cells.total + kAttentionSplit - 1) / kAttentionSplit, split = blockIdx.x;
  if (split >= splits) return;
  const int group = heads / kv_heads, parts = (group + H - 1) / H;
  const int kv_head = blockIdx.y / parts, head = kv_head * group + blockIdx.y % parts * H;
  const int count = min(H, (kv_head + 1) * group - head), end = min(cells.total - split * kAttentionSplit, kAttentionSplit);
  for (int i = threadIdx.x; i < count * head_dim; i += kAttentionThreads)
    queries[i] = q[(static_cast<size_t>(row) * heads + head) * head_dim + i];
  bool found = true;
  if (static_cast<int>(threadIdx.x) < end) {
    const int cell = cells.at(split * kAttentionSplit + threadIdx.x);
    const int page = cell < 0 ? -1 : page_id(page_table, pages_per_seq, num_pages, sequences[row], cell / kPageCells);
    found = page >= 0;
    s.cell[threadIdx.x] = page * kPageCells + cell % kPageCells;
  }
  const KvPools kv = {k_pool, v_pool, k_scales, v_scales, kv_heads, head_dim};
  const size_t per_row = static_cast<size_t>(heads) * max_splits;
  float* mine = results + blockIdx.z * per_row * (head_dim + 2);
  const SplitResults r = {mine, mine + per_row, mine + 2 * per_row, max_splits, head_dim};
  if (__syncthreads_or(!found)) {
    if (threadIdx.x == 0) report(faults, kFaultRange);
  } else {
    split_scores<STRATA_KV, H>(s, queries, kv, kv_head, count, 0, end, scale);
    split_softmax(s, count, 0, end);
    split_values<STRATA_KV, H>(s, kv, kv_head, count, 0, end, r, head, split);
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* counter = arrived + blockIdx.z * gridDim.y + blockIdx.y;
    last_block = atomicAdd(counter, 1u) == static_cast<uint32_t>(splits - 1);
    if (last_block) *counter = 0;
    __threadfence();
  }
  __syncthreads();
  if (!last_block) return;
  for (int h = head; h < head + count; ++h) {
    float* to = out + (static_cast<size_t>(row) * heads + h) * head_dim;
    join_splits(r, h, 0, splits - 1, to);
#if STRATA_GATED
    const size_t at = (static_cast<size_t>(row) * heads + h) * head_dim;
    for (int i = threadIdx.x; i < head_dim; i += kAttentionThreads) {  // the values that this thread joined
      const float value = to[i] * sigmoid32(q_and_gate[2 * at + head_dim + i]);
      if (!finite32(value)) report(faults, kFaultNonFinite);
      const size_t block = at + i - lane_id();
      quantize_block(value, q8 + block, q8_d + block / 32, q8_sums + block / 16);
    }
#endif
  }
}
