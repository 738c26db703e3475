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
  alignas(64) Group raw[kChunkBlocks * kGroups];                      // as the format keeps its codes, or the codes
  alignas(64) Group extra[kChunkBlocks];                              // signs, upper bits
  alignas(64) uint16_t index[kFeatures][2 * kChunkBlocks * kGroups];  // of a grid's entries
  // One scale per 32: scale[0] is w, min[0] the minimum. Two float scales: scale[0], scale[1].
  alignas(64) float scale[2][kChunkBlocks][kFeatures], min[kChunkBlocks][kFeatures];
  // Integer scales per 16 values: of both halves, with d (and dmin) for the whole chunk.
  alignas(64) int32_t half_scale[2][kChunkBlocks][kFeatures], half_min[2][kChunkBlocks][kFeatures];
  alignas(64) float d[kFeatures], dmin[kFeatures];
};

// A block of an activation row as products read it: one cache line.
struct alignas(64) ActivationBlock {
  int8_t codes[32];
  int32_t start[2][2];  // minus what the bias adds, then 0: of the halves, or of the whole block and then unused
  int32_t sum[2];       // sum of codes per half
  float d, sum_d;       // scale; float(sum of codes) * d
};

// What the product of a type depends on.
template <QuantType T> struct ProductKind {
  static constexpr bool has_min = Layout<T>::has_min, scale16 = Layout<T>::scale16;
  static constexpr bool halves = Layout<T>::halves && !scale16;
};

STRATA_HD int64_t load_i64(const void* p) {
  int64_t x;
  memcpy(&x, p, 8);
  return x;
}

#if STRATA_SIMD == 512

// Sums of products of groups [begin, end) of a block with an activation, for sixteen features.
template <int begin, int end>
STRATA_HD Ints group_sums(const Bytes (&w)[kGroups][2], const int8_t* codes, const int32_t* start) {
  __m512i low = _mm512_set1_epi64(load_i64(start)), high = low;
#pragma GCC unroll 4
  for (int g = begin; g < end; ++g) {
    const __m512i a = _mm512_set1_epi64(load_i64(codes + 8 * g));
    low = _mm512_dpbusd_epi32(low, w[g][0], a);
    high = _mm512_dpbusd_epi32(high, w[g][1], a);
  }
  const __m512 x = _mm512_castsi512_ps(low), y = _mm512_castsi512_ps(high);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0xdd)));
}

#else

// As above. Codes are below 128 or signed (kSigned): pairs of products then stay within 16 bits, which maddubs would
// saturate at.
template <int begin, int end, bool kSigned = false>
STRATA_HD Ints group_sums(const Bytes (&w)[kGroups][4], const int8_t* codes, const int32_t* start) {
  __m256i sum[4];
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) sum[v] = _mm256_set1_epi64x(load_i64(start));
#pragma GCC unroll 4
  for (int g = begin; g < end; ++g) {
    const __m256i a = _mm256_set1_epi64x(load_i64(codes + 8 * g));
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i pairs = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[g][v]), _mm256_sign_epi8(a, w[g][v]))
                                    : _mm256_maddubs_epi16(w[g][v], a);
      sum[v] = _mm256_add_epi32(sum[v], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
  return {_mm256_hadd_epi32(sum[0], sum[1]), _mm256_hadd_epi32(sum[2], sum[3])};
}

#endif

constexpr int kVectors = 128 / kBytes;  // of a group

// Codes of one block, in registers for as many rows as there are.
using BlockCodes = Bytes[kGroups][kVectors];

#if STRATA_SIMD == 512
#define STRATA_SUMS(begin, end, half) group_sums<begin, end>(w, a.codes, a.start[half])
#else
#define STRATA_SUMS(begin, end, half) group_sums<begin, end, kSigned>(w, a.codes, a.start[half])
#endif

// One chain step (contract.h: dot_step, min_step) of block b, whose codes are w.
template <class Kind, bool kSigned>
STRATA_HD Floats chain_step(const PackedTile& tile, int b, const BlockCodes& w, const ActivationBlock& a,
                            Floats chain) {
  const Floats d_a = splat(a.d);
  if constexpr (Kind::scale16) {
    const Ints low = STRATA_SUMS(0, 2, 0);
    const Ints high = STRATA_SUMS(2, 4, 1);
    chain = fma(to_floats(low), mul(load_floats(tile.scale[0][b]), d_a), chain);
    chain = fma(to_floats(high), mul(load_floats(tile.scale[1][b]), d_a), chain);
  } else if constexpr (Kind::halves) {
    const Ints low = STRATA_SUMS(0, 2, 0);
    const Ints high = STRATA_SUMS(2, 4, 1);
    const Ints sum = add(mul(low, load_ints(tile.half_scale[0][b])), mul(high, load_ints(tile.half_scale[1][b])));
    chain = fma(to_floats(sum), mul(load_floats(tile.d), d_a), chain);
  } else {
    const Ints sum = STRATA_SUMS(0, 4, 0);
    chain = fma(to_floats(sum), mul(load_floats(tile.scale[0][b]), d_a), chain);
  }
  if constexpr (Kind::has_min && Kind::halves) {
    const Ints sum = add(mul(load_ints(tile.half_min[0][b]), splat_int(a.sum[0])),
                         mul(load_ints(tile.half_min[1][b]), splat_int(a.sum[1])));
    chain = fma(to_floats(sum), mul(load_floats(tile.dmin), d_a), chain);
  } else if constexpr (Kind::has_min) {
    chain = fma(load_floats(tile.min[b]), splat(a.sum_d), chain);
  }
  return chain;
}

#undef STRATA_SUMS

}  // namespace strata::STRATA_LEVEL
#endif
