// publish: a step's sampled tokens into the results ring (ops/publish.py). The step number is written last, so that a
// reader who sees it sees the rest.
// ptr: num_rows, step int32, ids int32, logprobs float, ring int32 [depth, width]; dim: depth, width.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

void publish(const Op& op, int thread, int) {
  if (thread != 0) return;
  const int64_t width = op.dim[1], rows = (width - 2) / 2, n = live_rows(op, 0);
  const int32_t step = *op.at<const int32_t>(1);
  int32_t* slot = op.at<int32_t>(4) + step % op.dim[0] * width;
  if (n < 0 || n > rows || step < 0) return op.fault(kFaultRange);
  memcpy(slot + 2, op.at<const int32_t>(2), static_cast<size_t>(n) * 4);
  memcpy(slot + 2 + rows, op.at<const float>(3), static_cast<size_t>(n) * 4);
  slot[1] = static_cast<int32_t>(n);
  __atomic_store_n(slot, step, __ATOMIC_RELEASE);
}

}  // namespace strata::STRATA_LEVEL
