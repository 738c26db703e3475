// Index keys of sparse attention, of one row by one warp (index.cu, attention_inputs.cu).
#pragma once

#include "rows.cuh"

namespace strata {

// Place in a ring of 64 rows for row r, or -1 where later rows of the step take it.
__device__ __forceinline__ int kept_row(const StepRows& rows, int r, uint32_t* faults) {
  if (!rows.valid(r)) {
    report(faults, kFaultRange);
    return -1;
  }
  return rows.same(r + kRingRows, rows.sequences[r]) ? -1 : rows.sequences[r] * kRingRows + ring_row(rows.positions[r]);
}

struct IndexKeys {
  StepRows rows;
  const int *page_table, *rope_positions, *cells;
  const float *x, *weight;  // x [rows, dim]
  float *raw, *pooled;
  Rotary rotary;
  int dim, ratio, pages_per_seq, num_pages;
  float eps;

  // Keeps row r's raw key; where it completes a block, stores the block's. `mean`: shared memory of `dim` floats.
  __device__ __forceinline__ void keep(int r, float* mean, uint32_t* faults) const {
    const int to = kept_row(rows, r, faults);
    for (int d = lane_id(); to >= 0 && d < dim; d += 32) raw[static_cast<size_t>(to) * dim + d] = x[static_cast<size_t>(r) * dim + d];
    const int position = rows.positions[r], sequence = rows.sequences[r];
    if (!rows.valid(r) || position % ratio != ratio - 1) return;
    const int page = page_id(page_table, pages_per_seq, num_pages, sequence, position / kPageCells);
    const int first = r - (ratio - 1), start = position - (ratio - 1);
    const int* place = rows.same(first, sequence) ? rope_positions + first * 3
                                                  : cells + (static_cast<size_t>(sequence) * kRingRows + ring_row(start)) * 3;
    if (page < 0 || !rotary.valid(place)) return report(faults, kFaultRange);
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
    norm_rotate(mean, weight, dim, eps, rotary, place, Angle(rotary, place, lane_id()), pooled + block * dim);
  }
};

}  // namespace strata
