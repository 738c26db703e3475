// Index keys of sparse attention: raw ones in a ring by position, a block's pooled one in its page.
#include "rows.cuh"

using namespace strata;

namespace {

// Place in a ring of 64 rows for row r, or -1 where later rows of the step take it.
__device__ __forceinline__ int kept_row(const StepRows& rows, int r, uint32_t* faults) {
  if (!rows.valid(r)) {
    report(faults, kFaultRange);
    return -1;
  }
  return rows.same(r + kRingRows, rows.sequences[r]) ? -1 : rows.sequences[r] * kRingRows + ring_row(rows.positions[r]);
}

}  // namespace

extern "C" {

// A thread a row.
__global__ void cell_positions(const int* live, const int* positions, const int* sequences, const int* rope_positions, int* cells,
                               int slots, uint32_t* faults) {
  dependency_launch();
  dependency_wait();
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
  float* mean = reinterpret_cast<float*>(shared);
  dependency_launch();
  dependency_wait();
  const StepRows rows{positions, sequences, *live, slots};
  const int r = blockIdx.x;
  if (r >= rows.live) return;
  const int to = kept_row(rows, r, faults);
  for (int d = lane_id(); to >= 0 && d < dim; d += 32) raw[static_cast<size_t>(to) * dim + d] = x[static_cast<size_t>(r) * dim + d];
  const int position = positions[r], sequence = sequences[r];
  if (!rows.valid(r) || position % ratio != ratio - 1) return;
  const Rotary rotate{table, axes, rotary / 2, max_positions};
  const int page = page_id(page_table, pages_per_seq, num_pages, sequence, position / kPageCells);
  const int first = r - (ratio - 1), start = position - (ratio - 1);
  const int* place = rows.same(first, sequence) ? rope_positions + first * 3
                                                : cells + (static_cast<size_t>(sequence) * kRingRows + ring_row(start)) * 3;
  if (page < 0 || !rotate.valid(place)) return report(faults, kFaultRange);
  for (int d = lane_id(); d < dim; d += 32) {
    float sum = 0.0f;
    for (int i = 0; i < ratio; ++i) {
      const float key = rows.same(first + i, sequence)
                            ? x[static_cast<size_t>(first + i) * dim + d]
                            : raw[(static_cast<size_t>(sequence) * kRingRows + ring_row(start + i)) * dim + d];
      sum = i == 0 ? key : sum + key;
    }
    mean[d] = div32(sum, static_cast<float>(ratio));
  }
  __syncwarp();
  const size_t block = static_cast<size_t>(page) * (kPageCells / ratio) + position % kPageCells / ratio;
  norm_rotate(mean, weight, dim, eps, rotate, place, pooled + block * dim);
}

}  // extern "C"
