// What decoders of block formats share: moving bytes of sixteen rows side by side, and scales by feature.
#pragma once
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

// Calls f(offset) for each vector of a group.
template <class F> STRATA_HD void each_vector(F&& f) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) f(v * kBytes);
}

#if STRATA_SIMD == 512

// to[q] = eight bytes q of each row; up to eight of them.
template <int count, class RowAt>
STRATA_HD void transpose_qwords(RowAt&& row_at, Group* to) {
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {  // place(): vector h holds features 4 l + 2 h + s at 2 l + s
    __m512i r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      r[i] = _mm512_maskz_loadu_epi64(static_cast<__mmask8>((1 << count) - 1), row_at(4 * (i >> 1) + 2 * h + (i & 1)));
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

#endif

// to[q] = eight bytes at offset + 8 q of each row, q < count.
template <int count>
STRATA_HD void copy_qwords(const WeightRows& rows, int offset, Group* to) {
#if STRATA_SIMD == 512
#pragma GCC unroll 4
  for (int q = 0; q + 8 <= count; q += 8)
    transpose_qwords<8>([&](int f) { return rows.at[f] + offset + 8 * q; }, to + q);
  constexpr int left = count % 8, done = count - left;
  if constexpr (left > 0)
    transpose_qwords<left>([&](int f) { return rows.at[f] + offset + 8 * done; }, to + done);
#else
  for (int f = 0; f < kFeatures; ++f)
    for (int q = 0; q < count; ++q) to[q][place(f)] = load64(rows.at[f] + offset + 8 * q);
#endif
}

// to[width b + q] = eight bytes q of block b's part at `offset`, blocks `stride` bytes apart.
template <int stride, int offset, int width>
STRATA_HD void copy_blocks(const WeightRows& rows, int blocks, Group* to) {
  for (int f = 0; f < kFeatures; ++f) {
    const uint8_t* p = rows.at[f] + offset;
    uint64_t* at = to[0] + place(f);
    for (int b = 0; b < blocks; ++b, p += stride)
#pragma GCC unroll 4
      for (int q = 0; q < width; ++q, at += kFeatures) *at = load64(p + 8 * q);
  }
}

// ---- scales ----------------------------------------------------------------------------------------------------

// Half numbers at `offset` of each row as floats, feature by feature.
STRATA_HD Floats row_halves(const WeightRows& rows, int offset) {
  alignas(64) uint16_t half[kFeatures];
  for (int f = 0; f < kFeatures; ++f) memcpy(&half[f], rows.at[f] + offset, 2);
  return floats_half(half);
}

// scale[0][b] = the half number at `offset` of block b, times factor; each serves `repeat` 32-blocks.
template <int stride, int offset, int repeat = 1>
STRATA_HD void block_halves(const WeightRows& rows, int blocks, float (&to)[kChunkBlocks][kFeatures]) {
  alignas(64) uint16_t half[kChunkBlocks][kFeatures];
  for (int f = 0; f < kFeatures; ++f)
    for (int b = 0; b < blocks / repeat; ++b) memcpy(&half[b][f], rows.at[f] + b * stride + offset, 2);
  for (int b = 0; b < blocks; ++b) store_floats(to[b], floats_half(half[b / repeat]));
}

// One scale for all blocks of the chunk.
STRATA_HD void same_scale(Floats d, PackedTile& tile) {
  for (int b = 0; b < kChunkBlocks; ++b) store_floats(tile.scale[0][b], d);
}

// Small numbers of sixteen rows, sixteen a row, turned: column(c) has one byte a feature.
struct ScaleBytes {
  alignas(64) uint8_t row[kFeatures][16];
  alignas(64) uint8_t turned[16][16];

#if STRATA_SIMD == 512
  STRATA_HD void turn() {
    // Within four rows: byte c of each, side by side; then words of four across the four vectors.
    alignas(64) static constexpr uint8_t order[64] = {0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51,
                                                      4,  20, 36, 52, 5,  21, 37, 53, 6,  22, 38, 54, 7,  23, 39, 55,
                                                      8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58, 11, 27, 43, 59,
                                                      12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
    const __m512i index = _mm512_load_si512(order);
    __m512i x[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) x[i] = _mm512_permutexvar_epi8(index, _mm512_load_si512(row[4 * i]));
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    _mm512_store_si512(turned[0], _mm512_unpacklo_epi64(a, c)), _mm512_store_si512(turned[4], _mm512_unpackhi_epi64(a, c));
    _mm512_store_si512(turned[8], _mm512_unpacklo_epi64(b, d)), _mm512_store_si512(turned[12], _mm512_unpackhi_epi64(b, d));
  }
  // Vector e has columns 4 l + e.
  STRATA_HD const uint8_t* column(int c) const { return turned[c % 4 * 4 + c / 4]; }
#else
  STRATA_HD void turn() {
    __m128i x[16], t[16];
    for (int i = 0; i < 16; ++i) x[i] = _mm_load_si128(reinterpret_cast<const __m128i*>(row[i]));
#pragma GCC unroll 4
    for (int stage = 0; stage < 4; ++stage) {  // a perfect shuffle of rows and bytes, four times
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) t[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]), t[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
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

// scale[0][b] = d * number b.
STRATA_HD void block_scales(const ScaleBytes& s, Floats d, bool is_signed, PackedTile& tile) {
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b)
    store_floats(tile.scale[0][b], mul(d, to_floats(is_signed ? s.signed_ints(b) : s.ints(b))));
}

// half_scale[h][b] = number 2 b + h.
STRATA_HD void half_scales(const ScaleBytes& s, bool is_signed, PackedTile& tile) {
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h)
      store_ints(tile.half_scale[h][b], is_signed ? s.signed_ints(2 * b + h) : s.ints(2 * b + h));
}

// Decode<T>: codes(rows, blocks, tile) and scales(rows, blocks, tile) of a chunk; codes are stored + bias, or signed
// where that would pass 127 and the level multiplies such bytes badly. Value k of a 32-block is byte k % 8 of group
// k / 8, or with `strided` byte k / 4 of group k % 4.
template <QuantType T> struct Decode;

struct Plain {  // defaults
  static constexpr int bias = 0;
  static constexpr bool strided = false, is_signed = false;
};

}  // namespace strata::STRATA_LEVEL
#endif
