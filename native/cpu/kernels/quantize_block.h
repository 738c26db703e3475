// One activation block of 32 to int8 (docs/contract.md).
#pragma once
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

// Codes, the scale, and the sums of codes of each half; false, with codes of 0, when a value is not finite.
STRATA_HD bool quantize_block(const float* __restrict x, int8_t* __restrict codes, float* scale, int16_t* sums) {
  constexpr int kHalf = kBlock / 2;
  uint32_t bits = 0;
  for (int i = 0; i < kBlock; ++i) {
    const uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
    bits = bits > magnitude ? bits : magnitude;
  }
  const bool finite = bits < 0x7f800000u;
  const float amax = finite ? bits_float(bits) : 0.0f, inverse = block_inverse(amax);
  for (int i = 0; i < kBlock; ++i) codes[i] = finite ? block_code(x[i], inverse) : int8_t{0};
  *scale = block_scale(amax);
  for (int h = 0; h < 2; ++h) {
    int sum = 0;
    for (int i = 0; i < kHalf; ++i) sum += codes[h * kHalf + i];
    sums[h] = static_cast<int16_t>(sum);
  }
  return finite;
}

}  // namespace strata::STRATA_LEVEL
