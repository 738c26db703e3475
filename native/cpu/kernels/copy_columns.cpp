// copy_columns: out[r, out_column ..] = x[r, column ..], `width` values.
// ptr: num_rows, x, out; dim: x's row, out's row, column, out_column, width.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

void copy_columns(const Op& op, int thread, int threads) {
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r)
    memcpy(op.at<float>(2) + r * op.dim[1] + op.dim[3], op.at<const float>(1) + r * op.dim[0] + op.dim[2],
           static_cast<size_t>(op.dim[4]) * sizeof(float));
}

}  // namespace strata::STRATA_LEVEL
