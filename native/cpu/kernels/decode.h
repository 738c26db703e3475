// What decoders of block formats share: moving bytes of sixteen rows side by side, and scales by feature.
#pragma once
#include <array>

#include "cpu/kernels/packed_tile.h"
#include "strata/quants.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

// Where the chunk starts in each of sixteen weight rows.
struct WeightRows {
  const uint8_t* at[kFeatures];
};

STRATA_HD uint64_t load64(const uint8_t* p) {
  uint64_t x;
  memcpy(&x, p, 8);
  return x;
}

STRATA_HD uint8_t* bytes_of(Group& group) { return reinterpret_cast<uint8_t*>(group); }

// Vector v of a group.
STRATA_HD Bytes vector_of(const Group& group, int v) {
  return load_bytes(reinterpret_cast<const uint8_t*>(group) + v * kBytes);
}

// w[g][v] = code(g, v).
template <class F> STRATA_HD void each_code(BlockCodes& w, F&& code) {
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) w[g][v] = code(g, v);
}

#if STRATA_SIMD == 512

// to[q] = eight bytes q of each row, q < count <= 8; row(f) is a vector of them.
template <int count, class Row> STRATA_HD void transpose_qwords(Row&& row, Group* to) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {  // place(): vector h holds features 4 l + 2 h + s at 2 l + s
    __m512i r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = row(4 * (i >> 1) + 2 * h + (i & 1));
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm512_unpacklo_epi64(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_epi64(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int e = 0; e < 2; ++e) {  // t[2 p + e] lane l: eight bytes 2 l + e of rows 2 p, 2 p + 1
      const __m512i a = _mm512_shuffle_i64x2(t[e], t[2 + e], 0x88), b = _mm512_shuffle_i64x2(t[4 + e], t[6 + e], 0x88);
      const __m512i c = _mm512_shuffle_i64x2(t[e], t[2 + e], 0xdd), d = _mm512_shuffle_i64x2(t[4 + e], t[6 + e], 0xdd);
      const __m512i out[4] = {_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(c, d, 0x88),
                              _mm512_shuffle_i64x2(a, b, 0xdd), _mm512_shuffle_i64x2(c, d, 0xdd)};
#pragma GCC unroll 4
      for (int l = 0; l < 4; ++l)
        if (2 * l + e < count) _mm512_store_si512(to[2 * l + e] + 8 * h, out[l]);
    }
  }
}

#else

// The first of the four features that vector v of a group holds: place() turned round; then + 1, + 4, + 5.
constexpr int first_feature(int v) { return (v >> 1) * 8 + (v & 1) * 2; }

// first = eight bytes at `offset` of each row, second = the eight after them. Vectors are put together in registers:
// a load that covers four stores would wait until they have left for the cache.
STRATA_HD void transpose_pairs(const WeightRows& rows, int offset, Group& first, Group& second) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const auto load = [&](int f) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.at[first_feature(v) + f] + offset));
    };
    const __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(load(0)), load(4), 1);
    const __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(load(1)), load(5), 1);
    store_bytes(first + 4 * v, _mm256_unpacklo_epi64(a, b));
    store_bytes(second + 4 * v, _mm256_unpackhi_epi64(a, b));
  }
}

// to = eight bytes at `offset` of each row.
STRATA_HD void transpose_one(const WeightRows& rows, int offset, Group& to) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const auto two = [&](int f) {
      const __m128d low = _mm_load_sd(reinterpret_cast<const double*>(rows.at[first_feature(v) + f] + offset));
      return _mm_loadh_pd(low, reinterpret_cast<const double*>(rows.at[first_feature(v) + f + 1] + offset));
    };
    store_bytes(to + 4 * v, _mm256_castpd_si256(_mm256_insertf128_pd(_mm256_castpd128_pd256(two(0)), two(4), 1)));
  }
}

#endif

// to[q] = eight bytes at offset + 8 q of each row, q < count.
template <int count> STRATA_HD void copy_qwords(const WeightRows& rows, int offset, Group* to) {
#if STRATA_SIMD == 512
#pragma GCC unroll 4
  for (int q = 0; q + 8 <= count; q += 8)
    transpose_qwords<8>([&](int f) { return load_bytes(rows.at[f] + offset + 8 * q); }, to + q);
  constexpr int left = count % 8, done = count - left;
  constexpr auto lanes = static_cast<__mmask8>((1 << left) - 1);
  if constexpr (left > 0)
    transpose_qwords<left>([&](int f) { return _mm512_maskz_loadu_epi64(lanes, rows.at[f] + offset + 8 * done); },
                           to + done);
#else
#pragma GCC unroll 2
  for (int q = 0; q + 2 <= count; q += 2) transpose_pairs(rows, offset + 8 * q, to[q], to[q + 1]);
  if constexpr (count % 2 == 1) transpose_one(rows, offset + 8 * (count - 1), to[count - 1]);
#endif
}

// The low (first = 0) or high (1) halves of sixteen groups' eight bytes, feature by feature.
template <int first> STRATA_HD Ints half_words(const Group& group) {
  constexpr int order = first ? 0xdd : 0x88;
#if STRATA_SIMD == 512
  const __m512 x = _mm512_castsi512_ps(vector_of(group, 0)), y = _mm512_castsi512_ps(vector_of(group, 1));
  return _mm512_castps_si512(_mm512_shuffle_ps(x, y, order));
#else
  const auto two = [&](int v) {
    const __m256 x = _mm256_castsi256_ps(vector_of(group, v)), y = _mm256_castsi256_ps(vector_of(group, v + 1));
    return _mm256_castps_si256(_mm256_shuffle_ps(x, y, order));
  };
  return {two(0), two(2)};
#endif
}
STRATA_HD Ints low_words(const Group& group) { return half_words<0>(group); }
STRATA_HD Ints high_words(const Group& group) { return half_words<1>(group); }

// ---- scales ----------------------------------------------------------------------------------------------------

// Half numbers at `offset` of each row as floats, feature by feature.
STRATA_HD Floats row_halves(const WeightRows& rows, int offset) {
  alignas(32) __m128i half[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    __m128i x = _mm_setzero_si128();
#define STRATA_INSERT(i) x = _mm_insert_epi16(x, static_cast<int>(load16(rows.at[8 * h + i] + offset)), i);
    STRATA_INSERT(0)
    STRATA_INSERT(1)
    STRATA_INSERT(2) STRATA_INSERT(3) STRATA_INSERT(4) STRATA_INSERT(5) STRATA_INSERT(6) STRATA_INSERT(7)
#undef STRATA_INSERT
        half[h] = x;
  }
  return floats_half(half[0], half[1]);
}

// Small numbers of sixteen rows, sixteen bytes or eight words a row, turned: a column has one number a feature.
struct Columns {
  alignas(64) uint8_t turned[16][16];

#if STRATA_SIMD == 512
  // Rows 4 i .. 4 i + 3 side by side.
  template <class Row> STRATA_HD static __m512i four(int i, Row&& row) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(row(4 * i)), row(4 * i + 1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(row(4 * i + 2)), row(4 * i + 3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  // Within four rows: number c of each, side by side; then in pieces of four across the four vectors.
  STRATA_HD void turn_fours(const __m512i (&rows)[4]) {
    alignas(64) static constexpr uint8_t order[64] = {0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51,
                                                      4,  20, 36, 52, 5,  21, 37, 53, 6,  22, 38, 54, 7,  23, 39, 55,
                                                      8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58, 11, 27, 43, 59,
                                                      12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
    __m512i x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = _mm512_permutexvar_epi8(_mm512_load_si512(order), rows[i]);
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    const __m512i out[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                            _mm512_unpackhi_epi64(b, d)};
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) _mm512_store_si512(turned[4 * e], out[e]);
  }
  template <class Row> STRATA_HD void turn_bytes(Row&& row) {
    const __m512i rows[4] = {four(0, row), four(1, row), four(2, row), four(3, row)};
    turn_fours(rows);
  }
  STRATA_HD const uint8_t* column(int c) const { return turned[c % 4 * 4 + c / 4]; }
#else
  // A perfect shuffle of rows and numbers, four times.
  template <class Row> STRATA_HD void turn_bytes(Row&& row) {
    __m128i x[16], t[16];
    for (int i = 0; i < 16; ++i) x[i] = row(i);
#pragma GCC unroll 4
    for (int stage = 0; stage < 4; ++stage) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        t[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
        t[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) x[i] = t[i];
    }
    for (int i = 0; i < 16; ++i) _mm_store_si128(reinterpret_cast<__m128i*>(turned[i]), x[i]);
  }
  STRATA_HD const uint8_t* column(int c) const { return turned[c]; }
#endif

  STRATA_HD Ints ints(int c) const { return ints_u8(column(c)); }
  STRATA_HD Ints signed_ints(int c) const { return ints_s8(column(c)); }
};

STRATA_HD __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
STRATA_HD __m128i two64(uint64_t low, uint64_t high) {
  return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}

// One scale for all blocks of the chunk.
STRATA_HD void same_scale(Floats d, PackedTile& tile) {
  for (int b = 0; b < kChunkBlocks; ++b) store_floats(tile.scale[0][b], d);
}

// scale[0][b] = d * (number b - less).
STRATA_HD void block_scales(const Columns& s, Floats d, int less, PackedTile& tile) {
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b)
    store_floats(tile.scale[0][b], mul(d, to_floats(sub(s.ints(b), splat_int(less)))));
}

// half_scale[h][b] = number 2 b + h.
STRATA_HD void half_scales(const Columns& s, bool is_signed, PackedTile& tile) {
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h)
      store_ints(tile.half_scale[h][b], is_signed ? s.signed_ints(2 * b + h) : s.ints(2 * b + h));
}

// Decode<T>: load(rows, blocks, tile) brings a chunk's codes into the tile, scales(rows, blocks, tile) its scales;
// block(tile, b, w) takes block b apart: codes + bias, or signed where that would pass 127 and the level multiplies such
// bytes badly; top: the largest code. Value k of a 32-block is byte k % 8 of group k / 8, or with `strided` byte k / 4 of group k % 4.
template <QuantType T> struct Decode;

struct Plain {  // defaults
  static constexpr int bias = 0;
  static constexpr bool strided = false, is_signed = false;
};

// Sixteen bits hold the products of two codes and two activations, each up to 127, of 129 / top groups.
template <int top> constexpr int kTogether = STRATA_VNNI || top <= 32 ? 4 : top <= 64 ? 2 : 1;

template <QuantType T>
using KindOf = Kind<Layout<T>::has_min, Layout<T>::scale16, Layout<T>::halves && !Layout<T>::scale16,
                    Decode<T>::is_signed, kTogether<Decode<T>::top>>;

}  // namespace strata::STRATA_LEVEL
#endif
