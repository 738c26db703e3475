// quantize: float rows to int8 blocks of 32 with a scale each, and the sums of codes of each half block.
// ptr: num_rows, x, codes int8, scales float, sums int16; dim: k. A block with a non-finite value raises a fault.
#include "cpu/kernels/quantize_block.h"

namespace strata::STRATA_LEVEL {

void quantize(const Op& op, int thread, int threads) {
  // Blocks are numbered through all rows: k is a multiple of 32 and rows are dense.
  const Range blocks = part(live_rows(op, 0) * (op.dim[0] / kBlock), 1, thread, threads);
  bool finite = true;
  for (int64_t b = blocks.begin; b < blocks.end; ++b)
    finite &= quantize_block(op.at<const float>(1) + b * kBlock, op.at<int8_t>(2) + b * kBlock, op.at<float>(3) + b,
                             op.at<int16_t>(4) + 2 * b);
  if (!finite) op.fault(kFaultNonFinite);
}

}  // namespace strata::STRATA_LEVEL
