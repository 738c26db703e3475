// Vectors of the AVX2 and AVX-512 levels under one set of names, so that block formats are written once for both.
// STRATA_SIMD is 512 or 256; 0 leaves the portable text (linear_tile.h).
#pragma once
#include "strata/contract.h"

#if defined(__AVX512VBMI__) && defined(__AVX512VNNI__)
#define STRATA_SIMD 512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define STRATA_SIMD 256
#else
#define STRATA_SIMD 0
#endif
// Products of bytes that are added in 32 bits by one instruction.
#if STRATA_SIMD == 512 || (STRATA_SIMD == 256 && defined(__AVXVNNI__))
#define STRATA_VNNI 1
#else
#define STRATA_VNNI 0
#endif

#if STRATA_SIMD
#include <immintrin.h>

namespace strata::STRATA_LEVEL {

// Bytes: one vector of bytes. Lanes: sixteen 32-bit numbers, integer (Ints) or float (Floats).
#if STRATA_SIMD == 512

using Bytes = __m512i;
using Mask = __mmask64;
constexpr int kBytes = 64;

STRATA_HD Bytes load_bytes(const void* p) { return _mm512_loadu_si512(p); }
STRATA_HD void store_bytes(void* p, Bytes v) { _mm512_storeu_si512(p, v); }
STRATA_HD Bytes splat8(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
STRATA_HD Bytes splat16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
STRATA_HD Bytes splat64(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
STRATA_HD Bytes and8(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
STRATA_HD Bytes or8(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
STRATA_HD Bytes xor8(Bytes a, Bytes b) { return _mm512_xor_si512(a, b); }
STRATA_HD Bytes add8(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
STRATA_HD Bytes sub8(Bytes a, Bytes b) { return _mm512_sub_epi8(a, b); }
STRATA_HD Bytes min8(Bytes a, Bytes b) { return _mm512_min_epu8(a, b); }
STRATA_HD Bytes less8(Bytes a, Bytes b) { return _mm512_subs_epu8(a, b); }  // a - b, at least 0
STRATA_HD Bytes right16(Bytes a, int n) { return _mm512_srli_epi16(a, static_cast<unsigned>(n)); }
STRATA_HD Bytes left16(Bytes a, int n) { return _mm512_slli_epi16(a, static_cast<unsigned>(n)); }
STRATA_HD Bytes shuffle16(Bytes table, Bytes index) { return _mm512_shuffle_epi8(table, index); }
STRATA_HD Bytes splat128(const void* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
// Bytes that have a bit in common with `bits`.
STRATA_HD Mask test8(Bytes a, Bytes bits) { return _mm512_test_epi8_mask(a, bits); }
STRATA_HD Bytes add_where(Bytes a, Mask where, Bytes b) { return _mm512_mask_add_epi8(a, where, a, b); }
// base - a where `minus`, else base + a.
STRATA_HD Bytes signed_add(Bytes base, Mask minus, Bytes a) {
  return _mm512_mask_sub_epi8(_mm512_add_epi8(base, a), minus, base, a);
}

using Ints = __m512i;
using Floats = __m512;
STRATA_HD Floats load_floats(const float* p) { return _mm512_loadu_ps(p); }
STRATA_HD void store_floats(float* p, Floats v) { _mm512_storeu_ps(p, v); }
STRATA_HD Floats splat(float x) { return _mm512_set1_ps(x); }
STRATA_HD Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
STRATA_HD Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
STRATA_HD Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
STRATA_HD Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
STRATA_HD Ints load_ints(const int32_t* p) { return _mm512_loadu_si512(p); }
STRATA_HD void store_ints(int32_t* p, Ints v) { _mm512_storeu_si512(p, v); }
STRATA_HD Ints splat_int(int32_t x) { return _mm512_set1_epi32(x); }
STRATA_HD Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
STRATA_HD Ints sub(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
STRATA_HD Ints mul(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
STRATA_HD Ints max_int(Ints a, Ints b) { return _mm512_max_epi32(a, b); }
STRATA_HD Ints left_int(Ints a, int n) { return _mm512_slli_epi32(a, static_cast<unsigned>(n)); }
STRATA_HD Floats bits_floats(Ints a) { return _mm512_castsi512_ps(a); }
STRATA_HD Floats min_float(Floats a, Floats b) { return _mm512_min_ps(a, b); }
STRATA_HD Floats rint_floats(Floats a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
STRATA_HD Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
// 0 where a < b; a where it is no number.
STRATA_HD Floats zero_below(Floats x, Floats a, Floats b) {
  const Floats kept = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), x);
  return _mm512_mask_mov_ps(kept, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}
STRATA_HD Floats zero_where(Floats x, Ints a, Ints b) {  // where a = b
  return _mm512_maskz_mov_ps(_mm512_cmpneq_epi32_mask(a, b), x);
}
STRATA_HD Ints and_int(Ints a, Ints b) { return _mm512_and_si512(a, b); }
STRATA_HD Ints right_int(Ints a, int n) { return _mm512_srli_epi32(a, static_cast<unsigned>(n)); }
STRATA_HD Ints ints_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
STRATA_HD Ints ints_s8(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
STRATA_HD Floats floats_half(__m128i low, __m128i high) {
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
}

using IntVector = Ints;
using FloatVector = Floats;
STRATA_HD FloatVector load_vector(const float* p) { return load_floats(p); }
STRATA_HD IntVector load_int_vector(const int32_t* p) { return load_ints(p); }
STRATA_HD FloatVector splat_vector(float x) { return splat(x); }
STRATA_HD IntVector splat_int_vector(int32_t x) { return splat_int(x); }
STRATA_HD Bytes dot8(Bytes sum, Bytes codes, Bytes a) { return _mm512_dpbusd_epi32(sum, codes, a); }
STRATA_HD IntVector add_pairs(Bytes a, Bytes b) {
  const __m512 x = _mm512_castsi512_ps(a), y = _mm512_castsi512_ps(b);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}

#else

using Bytes = __m256i;
using Mask = __m256i;
constexpr int kBytes = 32;

STRATA_HD Bytes load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
STRATA_HD void store_bytes(void* p, Bytes v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
STRATA_HD Bytes splat8(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
STRATA_HD Bytes splat16(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
STRATA_HD Bytes splat64(uint64_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
STRATA_HD Bytes and8(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
STRATA_HD Bytes or8(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
STRATA_HD Bytes xor8(Bytes a, Bytes b) { return _mm256_xor_si256(a, b); }
STRATA_HD Bytes add8(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
STRATA_HD Bytes sub8(Bytes a, Bytes b) { return _mm256_sub_epi8(a, b); }
STRATA_HD Bytes min8(Bytes a, Bytes b) { return _mm256_min_epu8(a, b); }
STRATA_HD Bytes less8(Bytes a, Bytes b) { return _mm256_subs_epu8(a, b); }
STRATA_HD Bytes right16(Bytes a, int n) { return _mm256_srli_epi16(a, n); }
STRATA_HD Bytes left16(Bytes a, int n) { return _mm256_slli_epi16(a, n); }
STRATA_HD Bytes shuffle16(Bytes table, Bytes index) { return _mm256_shuffle_epi8(table, index); }
STRATA_HD Bytes splat128(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
STRATA_HD Mask test8(Bytes a, Bytes bits) {  // `bits` has one bit a byte here
  return _mm256_cmpeq_epi8(_mm256_and_si256(a, bits), bits);
}
STRATA_HD Bytes add_where(Bytes a, Mask where, Bytes b) { return _mm256_add_epi8(a, _mm256_and_si256(where, b)); }
STRATA_HD Bytes signed_add(Bytes base, Mask minus, Bytes a) {
  return _mm256_add_epi8(base, _mm256_sub_epi8(_mm256_xor_si256(a, minus), minus));
}

struct Ints {
  __m256i lo, hi;
};
struct Floats {
  __m256 lo, hi;
};
STRATA_HD Floats load_floats(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
STRATA_HD void store_floats(float* p, Floats v) { _mm256_storeu_ps(p, v.lo), _mm256_storeu_ps(p + 8, v.hi); }
STRATA_HD Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
STRATA_HD Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
STRATA_HD Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
STRATA_HD Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
STRATA_HD Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
STRATA_HD Ints load_ints(const int32_t* p) { return {load_bytes(p), load_bytes(p + 8)}; }
STRATA_HD void store_ints(int32_t* p, Ints v) { store_bytes(p, v.lo), store_bytes(p + 8, v.hi); }
STRATA_HD Ints splat_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
STRATA_HD Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
STRATA_HD Ints sub(Ints a, Ints b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
STRATA_HD Ints mul(Ints a, Ints b) { return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)}; }
STRATA_HD Ints max_int(Ints a, Ints b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
STRATA_HD Ints left_int(Ints a, int n) { return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)}; }
STRATA_HD Floats bits_floats(Ints a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
STRATA_HD Floats min_float(Floats a, Floats b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
STRATA_HD Floats rint_floats(Floats a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
STRATA_HD Ints to_ints(Floats a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
STRATA_HD __m256 zero_below8(__m256 x, __m256 a, __m256 b) {
  return _mm256_blendv_ps(_mm256_and_ps(x, _mm256_cmp_ps(a, b, _CMP_GE_OQ)), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
STRATA_HD Floats zero_below(Floats x, Floats a, Floats b) {
  return {zero_below8(x.lo, a.lo, b.lo), zero_below8(x.hi, a.hi, b.hi)};
}
STRATA_HD Floats zero_where(Floats x, Ints a, Ints b) {
  return {_mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.lo, b.lo)), x.lo),
          _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.hi, b.hi)), x.hi)};
}
STRATA_HD Ints and_int(Ints a, Ints b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
STRATA_HD Ints right_int(Ints a, int n) { return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)}; }
STRATA_HD Ints signed_right_int(Ints a, int n) { return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)}; }
STRATA_HD __m128i eight(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }
STRATA_HD Ints ints_u8(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(eight(p)), _mm256_cvtepu8_epi32(eight(p + 8))};
}
STRATA_HD Ints ints_s8(const uint8_t* p) {
  return {_mm256_cvtepi8_epi32(eight(p)), _mm256_cvtepi8_epi32(eight(p + 8))};
}
STRATA_HD Floats floats_half(__m128i low, __m128i high) { return {_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)}; }

using IntVector = __m256i;
using FloatVector = __m256;
STRATA_HD FloatVector load_vector(const float* p) { return _mm256_loadu_ps(p); }
STRATA_HD void store_floats(float* p, FloatVector v) { _mm256_storeu_ps(p, v); }
STRATA_HD IntVector load_int_vector(const int32_t* p) { return load_bytes(p); }
STRATA_HD FloatVector splat_vector(float x) { return _mm256_set1_ps(x); }
STRATA_HD IntVector splat_int_vector(int32_t x) { return _mm256_set1_epi32(x); }
STRATA_HD FloatVector mul(FloatVector a, FloatVector b) { return _mm256_mul_ps(a, b); }
STRATA_HD FloatVector add(FloatVector a, FloatVector b) { return _mm256_add_ps(a, b); }
STRATA_HD FloatVector fma(FloatVector a, FloatVector b, FloatVector c) { return _mm256_fmadd_ps(a, b, c); }
STRATA_HD FloatVector to_floats(IntVector a) { return _mm256_cvtepi32_ps(a); }
STRATA_HD IntVector add(IntVector a, IntVector b) { return _mm256_add_epi32(a, b); }
STRATA_HD IntVector mul(IntVector a, IntVector b) { return _mm256_mullo_epi32(a, b); }
#if STRATA_VNNI
STRATA_HD Bytes dot8(Bytes sum, Bytes codes, Bytes a) { return _mm256_dpbusd_avx_epi32(sum, codes, a); }
#endif
STRATA_HD IntVector add_pairs(Bytes a, Bytes b) {
  const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
  return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}

#endif

// IntVector, FloatVector: one vector of 32-bit numbers. add_pairs(a, b): neighbours of a added, then those of b, within
// each 128 bits.
constexpr int kVectorLanes = kBytes / 4;

// The half numbers in the low 16 bits of each, as floats.
STRATA_HD Floats low_halves(Ints a) {
#if STRATA_SIMD == 512
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
#else
  const auto eight_of = [](__m256i x) {
    x = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  };
  return floats_half(eight_of(a.lo), eight_of(a.hi));
#endif
}

// exp32 (contract.h) of sixteen numbers.
STRATA_HD Floats exp_floats(Floats x) {
  const Floats n = rint_floats(mul(min_float(splat(88.0f), x), splat(1.44269504088896341f)));
  Floats r = fma(n, splat(-0.693145751953125f), min_float(splat(88.0f), x));
  r = fma(n, splat(-1.42860682030941723e-6f), r);
  Floats p = splat(1.98412698e-4f);
  p = fma(p, r, splat(1.38888889e-3f));
  p = fma(p, r, splat(8.33333377e-3f));
  p = fma(p, r, splat(4.16666679e-2f));
  p = fma(p, r, splat(1.66666672e-1f));
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  const Floats power = bits_floats(left_int(add(to_ints(n), splat_int(127)), 23));
  return zero_below(mul(p, power), x, splat(-87.0f));
}

// Half numbers as floats.
STRATA_HD Floats load_halves(const uint16_t* p) {
  const auto* x = reinterpret_cast<const __m128i*>(p);
  return floats_half(_mm_loadu_si128(x), _mm_loadu_si128(x + 1));
}

// (a >> n) & mask in every byte; mask has at most 8 - n bits.
STRATA_HD Bytes field8(Bytes a, int n, int mask) { return and8(right16(a, n), splat8(mask)); }

// Byte j of each 8, in all eight places.
STRATA_HD Bytes dup_byte(Bytes a, int j) {
  alignas(16) static constexpr uint8_t base[16] = {0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8};
  return shuffle16(a, add8(splat128(base), splat8(j)));
}

// Byte i of each 8: bit i of byte j.
STRATA_HD Mask bits_of(Bytes a, int j) { return test8(dup_byte(a, j), splat64(0x8040201008040201ull)); }

}  // namespace strata::STRATA_LEVEL
#endif
