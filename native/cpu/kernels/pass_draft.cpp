// pass_draft: tokens[r] = ids[r], or 0 for none; drafts[depth] = ids and bits of log-probabilities.
// ptr: num_rows, depth int32, ids int32, logprobs float, tokens int32, drafts int32 [most, 2, rows]; dim: most, rows.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

void pass_draft(const Op& op, int thread, int) {
  if (thread != 0) return;
  const int64_t most = op.dim[0], rows = op.dim[1], live = live_rows(op, 0), depth = *op.at<const int32_t>(1);
  if (depth < 0 || depth >= most || live > rows) return op.fault(kFaultRange);
  int32_t* out = op.at<int32_t>(5) + depth * 2 * rows;
  for (int64_t r = 0; r < live; ++r) {
    const int32_t id = op.at<const int32_t>(2)[r];
    op.at<int32_t>(4)[r] = id < 0 ? 0 : id;
    out[r] = id;
  }
  memcpy(out + rows, op.at<const float>(3), static_cast<size_t>(live) * sizeof(float));
}

}  // namespace strata::STRATA_LEVEL
