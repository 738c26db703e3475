// cell_positions: keeps rotary positions in their cells.
// ptr: num_rows, positions int32, sequences int32, page_table int32, rope_positions int32 [rows, 3], cells int32
// [pages, 64, 3]; dim: pages_per_seq, num_pages.
// index_keys: stores raw index keys; a row that completes a block also the block's key: mean of its raw keys in order,
// RMS norm, rope at its first cell.
// ptr: num_rows, positions, sequences, page_table, x [rows, dim], weight [dim], table, axes, cells, raw [pages, 64,
// dim], pooled [pages, 64 / ratio, dim]; dim: dim (at most 512), ratio, rotary, max_positions, pages_per_seq, num_pages;
// scalar: eps.
#include "cpu/kernels/kv.h"
#include "cpu/kernels/rotate.h"

namespace strata::STRATA_LEVEL {

static constexpr int64_t kMaxDim = 512;

// Page of a row's cell, or -1.
STRATA_HD int64_t row_page(const Op& op, int64_t row, int64_t pages_per_seq, int64_t num_pages) {
  const int64_t position = op.at<const int32_t>(1)[row];
  if (position < 0) return -1;
  return page_id(op.at<const int32_t>(3), pages_per_seq, num_pages, op.at<const int32_t>(2)[row], position / kPageCells);
}

void cell_positions(const Op& op, int thread, int threads) {
  const Range rows = part(live_rows(op, 0), 64, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t page = row_page(op, r, op.dim[0], op.dim[1]);
    if (page < 0) {
      op.fault(kFaultRange);
      continue;
    }
    memcpy(op.at<int32_t>(5) + (page * kPageCells + op.at<const int32_t>(1)[r] % kPageCells) * 3,
           op.at<const int32_t>(4) + r * 3, 3 * sizeof(int32_t));
  }
}

// Row r's block, which it completes: keys of rows in this step come from x, since another thread may store them now.
static void pool_block(const Op& op, int64_t r, int64_t page) {
  const int64_t dim = op.dim[0], ratio = op.dim[1], cell = op.at<const int32_t>(1)[r] % kPageCells, first = cell - (ratio - 1);
  const int32_t* sequences = op.at<const int32_t>(2);
  const Rotary rotary{op.at<const float>(6), op.at<const int32_t>(7), op.dim[2] / 2, op.dim[3]};
  const int32_t* positions = op.at<const int32_t>(8) + (page * kPageCells + first) * 3;
  if (!rotary.valid(positions)) return op.fault(kFaultRange);
  alignas(64) float mean[kMaxDim];
  for (int64_t i = 0; i < ratio; ++i) {
    const int64_t row = r - (ratio - 1 - i);
    const float* key = row >= 0 && sequences[row] == sequences[r] ? op.at<const float>(4) + row * dim
                                                                  : op.at<const float>(9) + (page * kPageCells + first + i) * dim;
    for (int64_t d = 0; d < dim; ++d) mean[d] = i == 0 ? key[d] : mean[d] + key[d];
  }
  for (int64_t d = 0; d < dim; ++d) mean[d] = div32(mean[d], static_cast<float>(ratio));
  float* out = op.at<float>(10) + (page * (kPageCells / ratio) + first / ratio) * dim;
  norm_rotate(mean, op.at<const float>(5), dim, op.scalar[0], rotary, positions, out);
}

void index_keys(const Op& op, int thread, int threads) {
  const int64_t dim = op.dim[0], ratio = op.dim[1];
  if (dim > kMaxDim) return op.fault(kFaultRange);
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t page = row_page(op, r, op.dim[4], op.dim[5]);
    if (page < 0) {
      op.fault(kFaultRange);
      continue;
    }
    const int64_t cell = op.at<const int32_t>(1)[r] % kPageCells;
    memcpy(op.at<float>(9) + (page * kPageCells + cell) * dim, op.at<const float>(4) + r * dim,
           static_cast<size_t>(dim) * sizeof(float));
    if (cell % ratio == ratio - 1) pool_block(op, r, page);
  }
}

}  // namespace strata::STRATA_LEVEL
