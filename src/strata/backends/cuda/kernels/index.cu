// Index keys of sparse attention: raw ones in a ring by position, a block's pooled one in its page.
#include "index.cuh"

using namespace strata;

extern "C" {

// A thread a row.
__global__ void cell_positions(const int* live, const int* positions, const int* sequences, const int* rope_positions, int* cells,
                               int slots, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const StepRows rows{positions, sequences, *live, slots};
  const int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows.live) return;
  const int to = kept_row(rows, r, faults);
  for (int i = 0; to >= 0 && i < 3; ++i) cells[to * 3 + i] = rope_positions[r * 3 + i];
}

// A warp (thread block) a row; a row that completes a block of `ratio` stores its key. Shared memory: float [dim].
__global__ void index_keys(const int* live, const int* positions, const int* sequences, const int* page_table, const int* rope_positions,
                           const float* x, const float* weight, const float* table, const int* axes, const int* cells, float* raw,
                           float* pooled, int dim, int ratio, int rotary, int max_positions, int pages_per_seq, int num_pages, int slots,
                           float eps, uint32_t* faults) {
  STRATA_DYNAMIC_SHARED(shared);
  dependency_wait();
  dependency_launch();
  const IndexKeys keys{{positions, sequences, *live, slots}, page_table, rope_positions, cells, x, weight, raw, pooled,
                       {table, axes, rotary / 2, max_positions}, dim, ratio, pages_per_seq, num_pages, eps};
  if (static_cast<int>(blockIdx.x) < keys.rows.live) keys.keep(blockIdx.x, reinterpret_cast<float*>(shared), faults);
}

}  // extern "C"
