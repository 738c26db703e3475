// One activation block of 32 to int8 (docs/contract.md).
#pragma once
#include "cpu/kernels/kernel.h"
#include "cpu/kernels/simd.h"

namespace strata::STRATA_LEVEL {

#if STRATA_SIMD

STRATA_HD int largest_lane(Ints a) {
#if STRATA_SIMD == 512
  return _mm512_reduce_max_epi32(a);
#else
  const __m256i both = _mm256_max_epi32(a.lo, a.hi);
  __m128i x = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
#endif
}

STRATA_HD Ints float_lanes(Floats a) {
#if STRATA_SIMD == 512
  return _mm512_castps_si512(a);
#else
  return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
#endif
}

// Sixteen integers from -128 to 127 as bytes; returns their sum.
STRATA_HD int store_codes(int8_t* to, Ints a) {
#if STRATA_SIMD == 512
  const __m128i bytes = _mm512_cvtepi32_epi8(a);
#else
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
#endif
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());  // of code + 128
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}

#endif

// Codes, the scale, and the sums of codes of each half; false, with codes of 0, when a value is not finite.
STRATA_HD bool quantize_block(const float* __restrict x, int8_t* __restrict codes, float* scale, int16_t* sums) {
  constexpr int kHalf = kBlock / 2;
#if STRATA_SIMD
  const Floats half[2] = {load_floats(x), load_floats(x + kHalf)};
  const Ints magnitudes = splat_int(0x7fffffff);
  const int bits = largest_lane(
      max_int(and_int(float_lanes(half[0]), magnitudes), and_int(float_lanes(half[1]), magnitudes)));
  const bool finite = bits < 0x7f800000;
  const float amax = finite ? bits_float(static_cast<uint32_t>(bits)) : 0.0f;
  const Floats inverse = splat(block_inverse(amax));
  for (int h = 0; h < 2; ++h)
    sums[h] = static_cast<int16_t>(
        store_codes(codes + h * kHalf, finite ? to_ints(mul(half[h], inverse)) : splat_int(0)));
  *scale = block_scale(amax);
#else
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
#endif
  return finite;
}

}  // namespace strata::STRATA_LEVEL
