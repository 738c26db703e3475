// Sixteen weight rows ("features") decoded together, 256 values at a time, and their product with activation rows.
//
// Codes are unsigned bytes (code + bias), eight values of one feature side by side, the sixteen features of one group of
// eight values together: an activation's eight bytes, broadcast, meet sixteen features in two AVX-512 registers, and no
// sum of products crosses a feature. Bytes of the file are brought into that order before they are taken apart, so that
// taking apart is the same for every byte. Lanes of every float vector are the sixteen features: a step of the contract's
// chain is one fma for sixteen outputs.
#pragma once
#include "cpu/kernels/simd.h"
#include "strata/quant_parts.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

constexpr int kFeatures = 16;    // of a tile
constexpr int kChunkBlocks = 8;  // 32-blocks decoded at a time
constexpr int kGroups = 4;       // groups of eight values in a 32-block

// Where feature f's eight bytes lie in a group, in units of 8 bytes: pair sums of two vectors then come in order.
constexpr int place(int f) {
  return STRATA_SIMD == 512 ? (f >> 1 & 1) * 8 + (f >> 2) * 2 + (f & 1)
                            : (f >> 3) * 8 + (f >> 1 & 1) * 4 + (f >> 2 & 1) * 2 + (f & 1);
}

using Group = uint64_t[kFeatures];

struct PackedTile {
  alignas(64) Group raw[kChunkBlocks * (kGroups + 1)];                      // as the format keeps its codes, or the codes
  alignas(64) Group extra[kChunkBlocks];                              // signs, upper bits
  alignas(64) uint16_t index[kFeatures][2 * kChunkBlocks * kGroups];  // of a grid's entries
  // One scale per 32: scale[0] is w, min[0] the minimum. Two float scales: scale[0], scale[1].
  alignas(64) float scale[2][kChunkBlocks][kFeatures], min[kChunkBlocks][kFeatures];
  // Integer scales per 16 values: of both halves, with d (and dmin) for the whole chunk.
  alignas(64) int32_t half_scale[2][kChunkBlocks][kFeatures], half_min[2][kChunkBlocks][kFeatures];
  alignas(64) float d[kFeatures], dmin[kFeatures];
  alignas(64) uint8_t codes[kChunkBlocks][kGroups][8 * kFeatures];  // taken apart, where many rows read them
};

// A block of an activation row as products read it: one cache line.
struct alignas(64) ActivationBlock {
  int8_t codes[32];
  int32_t start[2][2];  // minus what the bias adds, then 0: of the halves, or of the whole block and then unused
  int32_t sum[2];       // sum of codes per half
  float d, sum_d;       // scale; float(sum of codes) * d
};

STRATA_HD int64_t load_i64(const void* p) {
  int64_t x;
  memcpy(&x, p, 8);
  return x;
}

constexpr int kVectors = 128 / kBytes;          // of a group
constexpr int kParts = kFeatures / kVectorLanes;  // vectors of 32-bit numbers that sixteen features take

// Codes of one block.
using BlockCodes = Bytes[kGroups][kVectors];

// What the product of a format depends on. `together`: groups whose products may be added in 16 bits before they are
// widened (AVX2 without VNNI).
template <bool has_min_, bool scale16_, bool halves_, bool is_signed_, int together_> struct Kind {
  static constexpr bool has_min = has_min_, scale16 = scale16_, halves = halves_, is_signed = is_signed_;
  static constexpr int together = together_;
};

#if STRATA_VNNI

template <class K, int begin, int end, int n>
STRATA_HD void group_sums(const BlockCodes& w, int part, const ActivationBlock* x, int half, IntVector (&sum)[n]) {
  Bytes low[n], high[n];
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) low[i] = high[i] = splat64(load_i64(x[i].start[half]));
#pragma GCC unroll 4
  for (int g = begin; g < end; ++g)
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      const Bytes a = splat64(load_i64(x[i].codes + 8 * g));
      low[i] = dot8(low[i], w[g][2 * part], a);
      high[i] = dot8(high[i], w[g][2 * part + 1], a);
    }
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) sum[i] = add_pairs(low[i], high[i]);
}

#else

// Products of codes with an activation's, neighbours added, in 16 bits: below 2^15 where codes stay below 128 or are
// signed and above -128.
template <bool is_signed> STRATA_HD Bytes pair_products(Bytes w, Bytes a) {
  return is_signed ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w)) : _mm256_maddubs_epi16(w, a);
}

template <class K, int begin, int end, int n>
STRATA_HD void group_sums(const BlockCodes& w, int part, const ActivationBlock* x, int half, IntVector (&sum)[n]) {
  constexpr int step = K::together < end - begin ? K::together : end - begin;
  const Bytes ones = splat16(1);
  Bytes low[n], high[n];
#pragma GCC unroll 4
  for (int first = begin; first < end; first += step) {
    Bytes pairs[n][2];
#pragma GCC unroll 4
    for (int g = first; g < first + step; ++g)
#pragma GCC unroll 8
      for (int i = 0; i < n; ++i) {
        const Bytes a = splat64(load_i64(x[i].codes + 8 * g));
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const Bytes products = pair_products<K::is_signed>(w[g][2 * part + v], a);
          pairs[i][v] = g == first ? products : _mm256_add_epi16(pairs[i][v], products);
          asm("" : "+x"(pairs[i][v]));  // GCC would put the additions off, until all products have left the registers
        }
      }
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      const Bytes wide[2] = {_mm256_madd_epi16(pairs[i][0], ones), _mm256_madd_epi16(pairs[i][1], ones)};
      low[i] = first == begin ? wide[0] : add(low[i], wide[0]);
      high[i] = first == begin ? wide[1] : add(high[i], wide[1]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    sum[i] = add_pairs(low[i], high[i]);
    if (!K::is_signed) sum[i] = add(sum[i], splat_int_vector(x[i].start[half][0]));
  }
}

#endif

// One chain step (contract.h: dot_step, min_step) of block b, whose codes are w, for n activations and part `part` of the
// features. n of them at once: the processor does not look far enough ahead to overlap the sums of one by itself.
template <class K, int n>
STRATA_HD void chain_steps(const PackedTile& tile, int b, const BlockCodes& w, int part, const ActivationBlock* x,
                           FloatVector (&chain)[n]) {
  const int f = part * kVectorLanes;
  IntVector sum[n];
  if constexpr (K::scale16) {
    group_sums<K, 0, 2>(w, part, x, 0, sum);
    const FloatVector first = load_vector(tile.scale[0][b] + f), second = load_vector(tile.scale[1][b] + f);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) chain[i] = fma(to_floats(sum[i]), mul(first, splat_vector(x[i].d)), chain[i]);
    group_sums<K, 2, 4>(w, part, x, 1, sum);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) chain[i] = fma(to_floats(sum[i]), mul(second, splat_vector(x[i].d)), chain[i]);
  } else if constexpr (K::halves) {
    IntVector low[n];
    group_sums<K, 0, 2>(w, part, x, 0, low);
    const IntVector first = load_int_vector(tile.half_scale[0][b] + f);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) low[i] = mul(low[i], first);
    group_sums<K, 2, 4>(w, part, x, 1, sum);
    const IntVector second = load_int_vector(tile.half_scale[1][b] + f);
    const FloatVector d = load_vector(tile.d + f);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i)
      chain[i] = fma(to_floats(add(low[i], mul(sum[i], second))), mul(d, splat_vector(x[i].d)), chain[i]);
  } else {
    group_sums<K, 0, 4>(w, part, x, 0, sum);
    const FloatVector scale = load_vector(tile.scale[0][b] + f);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) chain[i] = fma(to_floats(sum[i]), mul(scale, splat_vector(x[i].d)), chain[i]);
  }
  if constexpr (K::has_min && K::halves) {
    const IntVector first = load_int_vector(tile.half_min[0][b] + f), second = load_int_vector(tile.half_min[1][b] + f);
    const FloatVector dmin = load_vector(tile.dmin + f);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      const IntVector mins = add(mul(first, splat_int_vector(x[i].sum[0])), mul(second, splat_int_vector(x[i].sum[1])));
      chain[i] = fma(to_floats(mins), mul(dmin, splat_vector(x[i].d)), chain[i]);
    }
  } else if constexpr (K::has_min) {
    const FloatVector min = load_vector(tile.min[b] + f);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) chain[i] = fma(min, splat_vector(x[i].sum_d), chain[i]);
  }
}

}  // namespace strata::STRATA_LEVEL
#endif
