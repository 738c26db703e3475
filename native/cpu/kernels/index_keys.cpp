// cell_positions: keeps the rows' rotary positions in a ring by position.
// ptr: num_rows, positions int32, sequences int32, rope_positions int32 [rows, 3], cells int32 [slots, 64, 3]; dim: slots.
// index_keys: keeps raw index keys in such a ring; a row that completes a block stores the block's key: mean of its raw
// keys in order, RMS norm, rope at its first token.
// ptr: num_rows, positions, sequences, page_table int32, rope_positions, x [rows, dim], weight [dim], table, axes, cells,
// raw [slots, 64, dim], pooled [pages, 64 / ratio, dim]; dim: dim (at most 512), ratio, rotary, max_positions,
// pages_per_seq, num_pages, slots; scalar: eps.
#include "cpu/kernels/kv.h"
#include "cpu/kernels/rotate.h"

namespace strata::STRATA_LEVEL {

static constexpr int64_t kMaxDim = 512;

// Whether row r exists and belongs to `sequence`.
STRATA_HD bool same_sequence(const int32_t* sequences, int64_t r, int64_t live, int32_t sequence) {
  return r >= 0 && r < live && sequences[r] == sequence;
}

// Place in a ring of rows for row r, or -1 where later rows of the step take it; faults where there is no such slot.
STRATA_HD int64_t kept_row(const Op& op, int64_t r, int64_t live, int64_t slots) {
  const int32_t position = op.at<const int32_t>(1)[r], *sequences = op.at<const int32_t>(2), sequence = sequences[r];
  if (position < 0 || sequence < 0 || sequence >= slots) {
    op.fault(kFaultRange);
    return -1;
  }
  return same_sequence(sequences, r + kRingRows, live, sequence) ? -1 : sequence * kRingRows + ring_row(position);
}

void cell_positions(const Op& op, int thread, int threads) {
  const int64_t live = live_rows(op, 0);
  const Range rows = part(live, 64, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r)
    if (const int64_t to = kept_row(op, r, live, op.dim[0]); to >= 0)
      memcpy(op.at<int32_t>(4) + to * 3, op.at<const int32_t>(3) + r * 3, 3 * sizeof(int32_t));
}

// Row r's block, which it completes. What the step itself brings is read from the step: rings are being written.
static void pool_block(const Op& op, int64_t r, int64_t live) {
  const int64_t dim = op.dim[0], ratio = op.dim[1], position = op.at<const int32_t>(1)[r];
  const int32_t *sequences = op.at<const int32_t>(2), sequence = sequences[r];
  const int64_t page = page_id(op.at<const int32_t>(3), op.dim[4], op.dim[5], sequence, position / kPageCells);
  const Rotary rotary{op.at<const float>(7), op.at<const int32_t>(8), op.dim[2] / 2, op.dim[3]};
  const int64_t first = r - (ratio - 1), old = sequence * kRingRows;
  const int32_t* place = same_sequence(sequences, first, live, sequence)
                             ? op.at<const int32_t>(4) + first * 3
                             : op.at<const int32_t>(9) + (old + ring_row(position - (ratio - 1))) * 3;
  if (page < 0 || !rotary.valid(place)) return op.fault(kFaultRange);
  alignas(64) float mean[kMaxDim];
  for (int64_t i = 0; i < ratio; ++i) {
    const float* key = same_sequence(sequences, first + i, live, sequence)
                           ? op.at<const float>(5) + (first + i) * dim
                           : op.at<const float>(10) + (old + ring_row(position - (ratio - 1) + i)) * dim;
    for (int64_t d = 0; d < dim; ++d) mean[d] = i == 0 ? key[d] : mean[d] + key[d];
  }
  for (int64_t d = 0; d < dim; ++d) mean[d] = div32(mean[d], static_cast<float>(ratio));
  const int64_t block = page * (kPageCells / ratio) + position % kPageCells / ratio;
  norm_rotate(mean, op.at<const float>(6), dim, op.scalar[0], rotary, place, op.at<float>(11) + block * dim);
}

void index_keys(const Op& op, int thread, int threads) {
  const int64_t dim = op.dim[0], ratio = op.dim[1], live = live_rows(op, 0);
  if (dim > kMaxDim) return op.fault(kFaultRange);
  const Range rows = part(live, 1, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t position = op.at<const int32_t>(1)[r], to = kept_row(op, r, live, op.dim[6]);
    if (to >= 0)
      memcpy(op.at<float>(10) + to * dim, op.at<const float>(5) + r * dim, static_cast<size_t>(dim) * sizeof(float));
    const int32_t sequence = op.at<const int32_t>(2)[r];
    if (position >= 0 && sequence >= 0 && sequence < op.dim[6] && position % ratio == ratio - 1) pool_block(op, r, live);
  }
}

}  // namespace strata::STRATA_LEVEL
