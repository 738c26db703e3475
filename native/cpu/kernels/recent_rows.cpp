// keep_recent: ring[sequence, position mod depth] = x[r] for the last `depth` rows; recall_recent: the way back.
// ptr: num_rows, positions int32, sequences int32, from, to; dim: width, depth, sequences.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

// The row's place in the ring; -1, and a fault, where it lies outside.
STRATA_HD int64_t recent_place(const Op& op, int64_t r) {
  const int64_t position = op.at<const int32_t>(1)[r], sequence = op.at<const int32_t>(2)[r];
  if (position < 0 || sequence < 0 || sequence >= op.dim[2]) {
    op.fault(kFaultRange);
    return -1;
  }
  return (sequence * op.dim[1] + position % op.dim[1]) * op.dim[0];
}

void keep_recent(const Op& op, int thread, int threads) {
  const int64_t live = live_rows(op, 0), first = live > op.dim[1] ? live - op.dim[1] : 0;
  const Range rows = part(live - first, 1, thread, threads);
  for (int64_t r = first + rows.begin; r < first + rows.end; ++r) {
    const int64_t to = recent_place(op, r);
    if (to >= 0)
      memcpy(op.at<float>(4) + to, op.at<const float>(3) + r * op.dim[0], static_cast<size_t>(op.dim[0]) * sizeof(float));
  }
}

void recall_recent(const Op& op, int thread, int threads) {
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t from = recent_place(op, r);
    if (from >= 0)
      memcpy(op.at<float>(4) + r * op.dim[0], op.at<const float>(3) + from, static_cast<size_t>(op.dim[0]) * sizeof(float));
  }
}

}  // namespace strata::STRATA_LEVEL
