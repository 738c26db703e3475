// gather_rows: out[r] = x[index[r]] for r < n.
// ptr: n int32, index int32, x, out; dim: width.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

void gather_rows(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0];
  const int32_t* index = op.at<const int32_t>(1);
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    if (index[r] < 0) {
      op.fault(kFaultRange);
      continue;
    }
    const float* x = op.at<const float>(2) + index[r] * width;
    memcpy(op.at<float>(3) + r * width, x, static_cast<size_t>(width) * sizeof(float));
  }
}

}  // namespace strata::STRATA_LEVEL
