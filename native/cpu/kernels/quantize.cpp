// quantize: float rows to int8 blocks of 32 with a scale each, and the sums of codes of each half block.
// ptr: num_rows, x, codes int8, scales float, sums int16; dim: k. A block with a non-finite value raises a fault.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

void quantize(const Op& op, int thread, int threads) {
  constexpr int kHalf = kBlock / 2;
  // Blocks are numbered through all rows: k is a multiple of 32 and rows are dense.
  const Range blocks = part(live_rows(op, 0) * (op.dim[0] / kBlock), 1, thread, threads);
  bool finite = true;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const float* __restrict x = op.at<const float>(1) + b * kBlock;
    int8_t* __restrict codes = op.at<int8_t>(2) + b * kBlock;
    uint32_t bits = 0;
    for (int i = 0; i < kBlock; ++i) {
      const uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
      bits = bits > magnitude ? bits : magnitude;
    }
    const bool block_finite = bits < 0x7f800000u;
    finite &= block_finite;
    const float amax = block_finite ? bits_float(bits) : 0.0f, inverse = block_inverse(amax);
    for (int i = 0; i < kBlock; ++i) codes[i] = block_finite ? block_code(x[i], inverse) : int8_t{0};
    op.at<float>(3)[b] = block_scale(amax);
    for (int h = 0; h < 2; ++h) {
      int sum = 0;
      for (int i = 0; i < kHalf; ++i) sum += codes[h * kHalf + i];
      op.at<int16_t>(4)[2 * b + h] = static_cast<int16_t>(sum);
    }
  }
  if (!finite) op.fault(kFaultNonFinite);
}

}  // namespace strata::STRATA_LEVEL
