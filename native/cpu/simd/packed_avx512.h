// Products of packed weights (planes of `kernels/packed.cuh`) with one activation row: AVX-512 with VNNI, VBMI, BITALG.
//
// Sixteen weight rows at a time, read one after another (sixteen interleaved rows starve the prefetcher). A chunk of eight
// 32-blocks gives sixteen exact integer sums, one per 16 values; a panel of sums and scales is then turned so that a
// vector holds one block of the sixteen rows and takes one chain step.
#pragma once

#include <immintrin.h>

#include "strata/quants.h"

namespace strata::simd {

constexpr int kChunk = 8;    // blocks
constexpr int kMaxChunks = 64;

// Activations of one row in the byte orders that the decoders produce, and what the steps need per chunk.
struct Activation {
  alignas(64) int8_t codes[kMaxChunks][4][64];
  alignas(64) int32_t sums[kMaxChunks][16];   // sums of codes per 16
  alignas(64) float scale[kMaxChunks][16];    // d_a of the eight blocks, twice
  alignas(64) float scale2[kMaxChunks][16];   // d_a per 16 values
  alignas(64) float sum_scaled[kMaxChunks][16];  // float(sum of codes per 32) * d_a, twice
  int chunks;
};

// Position in the chunk (256 values) of byte i of vector v, per type.
template <QuantType T> constexpr int activation_order(int v, int i) {
  if constexpr (T == QuantType::IQ3_XXS) return 4 * i + v;
  if constexpr (T == QuantType::Q2_0) return 16 * (i / 4) + 4 * v + i % 4;
  if constexpr (T == QuantType::Q6_K || T == QuantType::Q4_K) return 128 * (v / 2) + 32 * (i / 16) + 16 * (v % 2) + i % 16;
  if constexpr (T == QuantType::NVFP4) return 128 * (v / 2) + 2 * i + v % 2;
  return 64 * v + i;
}

STRATA_HD __m512i bytes(const void* p) { return _mm512_loadu_si512(p); }
STRATA_HD __m512i bytes(const void* p, int count) {  // the first `count` of 64
  return count >= 64 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8((1ull << count) - 1, p);
}
STRATA_HD __m512 floats16(const float* p) { return _mm512_load_ps(p); }

// Byte permutations of a chunk into the decoder's order: of two 64-byte vectors, and which of two pairs.
template <QuantType T> struct Order {
  alignas(64) uint8_t index[4][64];
  uint64_t upper[4];
  Order() {
    for (int v = 0; v < 4; ++v) {
      upper[v] = 0;
      for (int i = 0; i < 64; ++i) {
        const int k = activation_order<T>(v, i);
        index[v][i] = static_cast<uint8_t>(k & 127);
        upper[v] |= static_cast<uint64_t>(k >> 7) << i;
      }
    }
  }
};

// Lays out one activation row (codes, scales, sums of codes per 16) for rows16.
template <QuantType T> void prepare(const int8_t* q, const float* d, const int16_t* sums, int blocks, Activation& a) {
  static const Order<T> order;
  const __m512i halves = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
  const __m512i twice = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
  a.chunks = (blocks + kChunk - 1) / kChunk;
  for (int c = 0; c < a.chunks; ++c) {
    const int count = blocks - kChunk * c < kChunk ? blocks - kChunk * c : kChunk;
    __m512i part[4];
    for (int i = 0; i < 4; ++i)
      part[i] = 2 * i < count ? bytes(q + 256 * c + 64 * i, (count - 2 * i) * 32) : _mm512_setzero_si512();
    for (int v = 0; v < 4; ++v) {
      const __m512i index = bytes(order.index[v]);
      const __m512i low = _mm512_permutex2var_epi8(part[0], index, part[1]), high = _mm512_permutex2var_epi8(part[2], index, part[3]);
      _mm512_store_si512(a.codes[c][v], _mm512_mask_blend_epi8(order.upper[v], low, high));
    }
    const __m512 scale = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), d + kChunk * c);
    const __m512i sum = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << 2 * count) - 1), sums + 16 * c));
    const __m512i sum32 = _mm512_add_epi32(_mm512_permutexvar_epi32(evens, sum), _mm512_permutexvar_epi32(_mm512_add_epi32(evens, _mm512_set1_epi32(1)), sum));
    const __m512 scales = _mm512_permutexvar_ps(twice, scale);
    _mm512_store_ps(a.scale[c], scales);
    _mm512_store_ps(a.scale2[c], _mm512_permutexvar_ps(halves, scale));
    _mm512_store_si512(a.sums[c], sum);
    _mm512_store_ps(a.sum_scaled[c], _mm512_mul_ps(_mm512_cvtepi32_ps(sum32), scales));
  }
}

// Planes of a matrix of `cells` 32-blocks.
struct Planes {
  const uint8_t* base;
  size_t cells;  // n * blocks
};

// Adds dwords in groups of four: lanes b of p and q hold block b's two halves (p: half 0, q: half 1) of blocks 0..3, p2
// and q2 of blocks 4..7. Result: half h of block b in dword 2 b + h.
STRATA_HD __m512i reduce_quads(__m512i p, __m512i q, __m512i p2, __m512i q2) {
  const __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi32(p, q), _mm512_unpackhi_epi32(p, q));
  const __m512i t2 = _mm512_add_epi32(_mm512_unpacklo_epi32(p2, q2), _mm512_unpackhi_epi32(p2, q2));
  const __m512i u = _mm512_add_epi32(_mm512_unpacklo_epi64(t, t2), _mm512_unpackhi_epi64(t, t2));
  const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  return _mm512_permutexvar_epi32(order, u);
}

// Rows<T>::sums(planes, at, count, chunk): sixteen sums per 16 values of the blocks [at, at + count) (signed codes);
// scale(...): w of the eight blocks (one scale), or per 16 values.
template <QuantType T> struct Rows;

template <> struct Rows<QuantType::IQ3_XXS> {
  alignas(64) uint8_t grid[4][256];  // byte planes of the grid
  __m512i dup;
  Rows() {
    for (int e = 0; e < 256; ++e)
      for (int j = 0; j < 4; ++j) grid[j][e] = static_cast<uint8_t>(kGridIq3Xxs[e] >> 8 * j);
    alignas(64) uint8_t index[64];
    for (int i = 0; i < 64; ++i) index[i] = static_cast<uint8_t>(i / 2);
    dup = bytes(index);
  }
  STRATA_HD __m512i sums(Planes w, size_t at, int count, const Activation& a, int chunk) const {
    const __m512i index = bytes(w.base + at * 8, count * 8);
    const __m256i words = _mm256_maskz_loadu_epi32(static_cast<__mmask8>((1 << count) - 1), w.base + w.cells * 8 + at * 4);
    const __m256i fields =  // bit offsets of the eight 7-bit fields of two words
        _mm256_set1_epi64x(0x352e2720150e0700ll);
    const __m256i seven = _mm256_and_si256(_mm256_multishift_epi64_epi8(fields, words), _mm256_set1_epi8(0x7f));
    const __m256i parity = _mm256_and_si256(_mm256_slli_epi16(_mm256_popcnt_epi8(seven), 7), _mm256_set1_epi8(-128));
    const __m512i signs = _mm512_permutexvar_epi8(dup, _mm512_castsi256_si512(_mm256_or_si256(seven, parity)));
    const __mmask64 upper = _mm512_movepi8_mask(index);
    __m512i acc = _mm512_setzero_si512();
    for (int j = 0; j < 4; ++j) {
      const __m512i low = _mm512_permutex2var_epi8(bytes(grid[j]), index, bytes(grid[j] + 64));
      const __m512i high = _mm512_permutex2var_epi8(bytes(grid[j] + 128), index, bytes(grid[j] + 192));
      const __mmask64 minus = _mm512_test_epi8_mask(signs, _mm512_set1_epi16(static_cast<short>(0x1001 << j)));
      const __m512i q = bytes(a.codes[chunk][j]);
      acc = _mm512_dpbusd_epi32(acc, _mm512_mask_blend_epi8(upper, low, high),
                                _mm512_mask_sub_epi8(q, minus, _mm512_setzero_si512(), q));
    }
    return acc;
  }
  STRATA_HD __m256 scale(Planes w, size_t at, int count) const {
    const __m256i words = _mm256_maskz_loadu_epi32(static_cast<__mmask8>((1 << count) - 1), w.base + w.cells * 8 + at * 4);
    uint16_t d;
    memcpy(&d, w.base + w.cells * 12 + at / 8 * 2, 2);
    const __m256i odd = _mm256_or_si256(_mm256_slli_epi32(_mm256_srli_epi32(words, 28), 1), _mm256_set1_epi32(1));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(odd), _mm256_set1_ps(half_float(d) * 0.25f));
  }
};

template <> struct Rows<QuantType::Q2_0> {
  STRATA_HD __m512i sums(Planes w, size_t at, int count, const Activation& a, int chunk) const {
    const __m512i x = bytes(w.base + at * 8, count * 8), three = _mm512_set1_epi8(3);
    __m512i acc = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_load_si512(a.sums[chunk]));
    for (int i = 0; i < 4; ++i)
      acc = _mm512_dpbusd_epi32(acc, _mm512_and_si512(_mm512_srli_epi16(x, 2 * i), three), bytes(a.codes[chunk][i]));
    return acc;
  }
  STRATA_HD __m256 scale(Planes w, size_t at, int count) const {
    const __m128i four = _mm_maskz_loadu_epi16(static_cast<__mmask8>((1 << count / 2) - 1), w.base + w.cells * 8 + at / 2 * 2);
    return _mm256_cvtph_ps(_mm_unpacklo_epi16(four, four));
  }
};

template <> struct Rows<QuantType::Q6_K> {
  STRATA_HD __m512i sums(Planes w, size_t at, int count, const Activation& a, int chunk) const {
    const __m512i nibble = _mm512_set1_epi8(15), high_bits = bytes(w.base + w.cells * 16 + at * 8, count * 8);
    const __m512i first = _mm512_set_epi64(2, 0, 2, 0, 2, 0, 2, 0), second = _mm512_set_epi64(6, 4, 6, 4, 6, 4, 6, 4);
    __m512i acc[4];
    for (int v = 0; v < 2; ++v) {
      const int left = count - 4 * v;
      const __m512i low = left <= 0 ? _mm512_setzero_si512() : bytes(w.base + (at + 4 * v) * 16, left * 16);
      const __m512i pairs = _mm512_setr_epi64(4 * v, 4 * v, 4 * v + 1, 4 * v + 1, 4 * v + 2, 4 * v + 2, 4 * v + 3, 4 * v + 3);
      const __m512i high = _mm512_permutexvar_epi64(pairs, high_bits);
      for (int h = 0; h < 2; ++h) {
        const __m512i two = _mm512_and_si512(_mm512_srlv_epi64(high, h ? second : first), _mm512_set1_epi8(3));
        const __m512i four = _mm512_and_si512(h ? _mm512_srli_epi16(low, 4) : low, nibble);
        acc[2 * v + h] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_or_si512(four, _mm512_slli_epi16(two, 4)),
                                             bytes(a.codes[chunk][2 * v + h]));
      }
    }
    const __m512i offset = _mm512_slli_epi32(_mm512_load_si512(a.sums[chunk]), 5);
    return _mm512_sub_epi32(reduce_quads(acc[0], acc[1], acc[2], acc[3]), offset);
  }
  STRATA_HD __m512i sub_scales(Planes w, size_t at, int count) const {
    const __m128i s = _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << 2 * count) - 1), w.base + w.cells * 24 + at * 2);
    return _mm512_cvtepi8_epi32(s);
  }
  STRATA_HD __m256 scale(Planes w, size_t at, int) const {
    uint16_t d;
    memcpy(&d, w.base + w.cells * 26 + at / 8 * 2, 2);
    return _mm256_set1_ps(half_float(d));
  }
};

template <> struct Rows<QuantType::Q4_K> {
  STRATA_HD __m512i sums(Planes w, size_t at, int count, const Activation& a, int chunk) const {
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i acc[4];
    for (int v = 0; v < 2; ++v) {
      const int left = count - 4 * v;
      const __m512i x = left <= 0 ? _mm512_setzero_si512() : bytes(w.base + (at + 4 * v) * 16, left * 16);
      for (int h = 0; h < 2; ++h)
        acc[2 * v + h] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_and_si512(h ? _mm512_srli_epi16(x, 4) : x, nibble),
                                             bytes(a.codes[chunk][2 * v + h]));
    }
    return reduce_quads(acc[0], acc[1], acc[2], acc[3]);
  }
  // Scales (low eight bytes) and minimums of the eight blocks.
  STRATA_HD static __m128i pairs(const uint8_t* p) {
    uint32_t s0, s1, s2;
    memcpy(&s0, p, 4), memcpy(&s1, p + 4, 4), memcpy(&s2, p + 8, 4);
    const uint32_t low = 0x0f0f0f0fu, six = 0x3f3f3f3fu, top = 0x30303030u;
    return _mm_setr_epi32(static_cast<int>(s0 & six), static_cast<int>((s2 & low) | (s0 >> 2 & top)),
                          static_cast<int>(s1 & six), static_cast<int>((s2 >> 4 & low) | (s1 >> 2 & top)));
  }
  STRATA_HD __m256 scale(Planes w, size_t at, int) const {
    uint16_t d;
    memcpy(&d, w.base + w.cells * 16 + w.cells / 8 * 12 + at / 8 * 4, 2);
    const __m128i s = pairs(w.base + w.cells * 16 + at / 8 * 12);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(s)), _mm256_set1_ps(half_float(d)));
  }
  STRATA_HD __m256 min(Planes w, size_t at) const {
    uint16_t d;
    memcpy(&d, w.base + w.cells * 16 + w.cells / 8 * 12 + at / 8 * 4 + 2, 2);
    const __m128i s = _mm_srli_si128(pairs(w.base + w.cells * 16 + at / 8 * 12), 8);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(s)), _mm256_set1_ps(-half_float(d)));
  }
};

template <> struct Rows<QuantType::IQ2_S> {
  STRATA_HD __m512i sums(Planes w, size_t at, int count, const Activation& a, int chunk) const {
    __m512i acc[4];
    for (int v = 0; v < 4; ++v) {  // two blocks
      acc[v] = _mm512_setzero_si512();
      if (2 * v >= count) continue;
      const uint8_t *p = w.base + (at + 2 * v) * 8, *high = w.base + w.cells * 8 + (at + 2 * v) * 2;
      alignas(64) uint64_t grid[8];
      for (int l = 0; l < 8; ++l) grid[l] = kGridIq2S[p[8 * (l / 4) + l % 4] | (high[2 * (l / 4)] >> 2 * (l % 4) & 3) << 8];
      const __mmask64 minus = load32(p + 4) | static_cast<uint64_t>(load32(p + 12)) << 32;
      const __m512i q = bytes(a.codes[chunk][v]);
      acc[v] = _mm512_dpbusd_epi32(acc[v], bytes(grid), _mm512_mask_sub_epi8(q, minus, _mm512_setzero_si512(), q));
    }
    // Lanes hold block 2 v half 0, half 1, block 2 v + 1 half 0, half 1, four dwords each.
    const __m512i t = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[0], acc[1]), _mm512_unpackhi_epi32(acc[0], acc[1]));
    const __m512i t2 = _mm512_add_epi32(_mm512_unpacklo_epi32(acc[2], acc[3]), _mm512_unpackhi_epi32(acc[2], acc[3]));
    const __m512i u = _mm512_add_epi32(_mm512_unpacklo_epi64(t, t2), _mm512_unpackhi_epi64(t, t2));
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), u);
  }
  STRATA_HD __m512i sub_scales(Planes w, size_t at, int count) const {
    alignas(64) int32_t s[16] = {};
    for (int b = 0; b < count; ++b) {
      const int byte = w.base[w.cells * 8 + (at + b) * 2 + 1];
      s[2 * b] = 2 * (byte & 15) + 1, s[2 * b + 1] = 2 * (byte >> 4) + 1;
    }
    return _mm512_load_si512(s);
  }
  STRATA_HD __m256 scale(Planes w, size_t at, int) const {
    uint16_t d;
    memcpy(&d, w.base + w.cells * 10 + at / 8 * 2, 2);
    return _mm256_set1_ps(half_float(d) * 0.125f);
  }
};

template <> struct Rows<QuantType::NVFP4> {
  STRATA_HD __m512i sums(Planes w, size_t at, int count, const Activation& a, int chunk) const {
    // E2M1 doubled, plus 12 so that codes are unsigned.
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i acc[2];
    for (int v = 0; v < 2; ++v) {
      const int left = count - 4 * v;
      const __m512i x = left <= 0 ? _mm512_setzero_si512() : bytes(w.base + (at + 4 * v) * 16, left * 16);
      const __m512i even = _mm512_shuffle_epi8(table, _mm512_and_si512(x, nibble));
      const __m512i odd = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(x, 4), nibble));
      acc[v] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), even, bytes(a.codes[chunk][2 * v]));
      acc[v] = _mm512_dpbusd_epi32(acc[v], odd, bytes(a.codes[chunk][2 * v + 1]));
    }
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_permutex2var_epi32(acc[0], evens, acc[1]), _mm512_permutex2var_epi32(acc[0], odds, acc[1]));
    return _mm512_sub_epi32(sum, _mm512_mullo_epi32(_mm512_load_si512(a.sums[chunk]), _mm512_set1_epi32(12)));
  }
  float values[256];  // ue4m3_halved of every byte
  Rows() {
    for (int i = 0; i < 256; ++i) values[i] = ue4m3_halved(static_cast<uint32_t>(i));
  }
  STRATA_HD __m512 scale16(Planes w, size_t at, int count) const {
    const __m128i s = _mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << 2 * count) - 1), w.base + w.cells * 16 + at * 2);
    return _mm512_i32gather_ps(_mm512_cvtepu8_epi32(s), values, 4);
  }
};

// Turns sixteen rows of sixteen floats (row r at x + r * stride) into sixteen columns.
STRATA_HD void turn16(const float* x, int stride, __m512 (&out)[16]) {
  __m512 t[16];
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {  // 4 x 4 within the lanes of rows g, g + 4, g + 8, g + 12 side by side
    const float* p = x + 4 * g * stride;
    const __m512 a = _mm512_load_ps(p), b = _mm512_load_ps(p + stride);
    const __m512 c = _mm512_load_ps(p + 2 * stride), d = _mm512_load_ps(p + 3 * stride);
    const __m512d ab0 = _mm512_castps_pd(_mm512_unpacklo_ps(a, b)), ab1 = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
    const __m512d cd0 = _mm512_castps_pd(_mm512_unpacklo_ps(c, d)), cd1 = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
    t[4 * g] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab0, cd0)), t[4 * g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab0, cd0));
    t[4 * g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(ab1, cd1)), t[4 * g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(ab1, cd1));
  }
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) {  // t[4 g + e] lane l: rows 4 g .. 4 g + 3 of column 4 l + e
    const __m512 p = _mm512_shuffle_f32x4(t[e], t[4 + e], 0x88), q = _mm512_shuffle_f32x4(t[8 + e], t[12 + e], 0x88);
    const __m512 r = _mm512_shuffle_f32x4(t[e], t[4 + e], 0xdd), s = _mm512_shuffle_f32x4(t[8 + e], t[12 + e], 0xdd);
    out[e] = _mm512_shuffle_f32x4(p, q, 0x88), out[8 + e] = _mm512_shuffle_f32x4(p, q, 0xdd);
    out[4 + e] = _mm512_shuffle_f32x4(r, s, 0x88), out[12 + e] = _mm512_shuffle_f32x4(r, s, 0xdd);
  }
}

STRATA_HD __m512 both(__m256 a, __m256 b) { return _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1); }

constexpr int kPanel = 64;  // blocks whose sums and scales wait, for sixteen rows, in the first-level cache

// Exact sums and scales of a panel of sixteen rows; the second pair for float scales per 16, or sum1 for minimums.
struct Panel {
  alignas(64) float sum[16][kPanel], scale[16][kPanel], sum1[16][kPanel], scale1[16][kPanel];
};

// Fills row r of a panel with blocks [first, first + count) of a weight row that starts at block `row`.
template <QuantType T>
STRATA_HD void fill_row(const Rows<T>& format, Planes w, size_t row, int first, int count, const Activation& a, int r, Panel& out) {
  constexpr bool halves = Layout<T>::halves && !Layout<T>::scale16, scale16 = Layout<T>::scale16;
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  for (int b = 0; b < count; b += 2 * kChunk) {
    const int c = (first + b) / kChunk, left = count - b < kChunk ? count - b : kChunk;
    const int left2 = count - b - left < kChunk ? count - b - left : kChunk;
    const size_t at = row + first + b, at2 = at + kChunk;
    __m512i s = format.sums(w, at, left, a, c), s2 = _mm512_setzero_si512();
    if (left2 > 0) s2 = format.sums(w, at2, left2, a, c + 1);
    if constexpr (halves) {
      s = _mm512_mullo_epi32(s, format.sub_scales(w, at, left));
      if (left2 > 0) s2 = _mm512_mullo_epi32(s2, format.sub_scales(w, at2, left2));
    }
    const __m512i x = _mm512_permutex2var_epi32(s, evens, s2), y = _mm512_permutex2var_epi32(s, odds, s2);
    if constexpr (scale16) {
      const __m512 e = _mm512_mul_ps(format.scale16(w, at, left), floats16(a.scale2[c]));
      const __m512 e2 = left2 > 0 ? _mm512_mul_ps(format.scale16(w, at2, left2), floats16(a.scale2[c + 1])) : e;
      _mm512_store_ps(&out.sum[r][b], _mm512_cvtepi32_ps(x)), _mm512_store_ps(&out.sum1[r][b], _mm512_cvtepi32_ps(y));
      _mm512_store_ps(&out.scale[r][b], _mm512_permutex2var_ps(e, evens, e2));
      _mm512_store_ps(&out.scale1[r][b], _mm512_permutex2var_ps(e, odds, e2));
    } else {
      const __m256 e = _mm256_mul_ps(format.scale(w, at, left), _mm256_load_ps(a.scale[c]));
      const __m256 e2 = left2 > 0 ? _mm256_mul_ps(format.scale(w, at2, left2), _mm256_load_ps(a.scale[c + 1])) : e;
      _mm512_store_ps(&out.sum[r][b], _mm512_cvtepi32_ps(_mm512_add_epi32(x, y)));
      _mm512_store_ps(&out.scale[r][b], both(e, e2));
    }
    if constexpr (Layout<T>::has_min) {
      const __m256 m = format.min(w, at);
      _mm512_store_ps(&out.sum1[r][b], both(m, left2 > 0 ? format.min(w, at2) : m));
    }
  }
}

// y[i], i < 16: rows row0 + i of the matrix [n, blocks] times the activation row, in the contract's order.
template <QuantType T>
void rows16(const Rows<T>& format, const uint8_t* base, int n, int blocks, int row0, const Activation& a, float* y) {
  constexpr bool scale16 = Layout<T>::scale16, has_min = Layout<T>::has_min;
  const Planes w{base, static_cast<size_t>(n) * blocks};
  const int segs = segments(blocks);
  int segment = 0, end = segment_begin(1, blocks);
  __m512 chain = _mm512_setzero_ps(), total = _mm512_setzero_ps();
  Panel panel;
  for (int first = 0; first < blocks; first += kPanel) {
    const int count = blocks - first < kPanel ? blocks - first : kPanel;
    for (int r = 0; r < 16; ++r)
      fill_row<T>(format, w, static_cast<size_t>(row0 + r) * blocks, first, count, a, r, panel);
    for (int b0 = 0; b0 < count; b0 += 16) {
      __m512 sum[16], scale[16], sum1[16], scale1[16];
      turn16(&panel.sum[0][b0], kPanel, sum), turn16(&panel.scale[0][b0], kPanel, scale);
      if constexpr (scale16 || has_min) turn16(&panel.sum1[0][b0], kPanel, sum1);
      if constexpr (scale16) turn16(&panel.scale1[0][b0], kPanel, scale1);
      for (int i = 0; i < 16 && b0 + i < count; ++i) {
        const int b = first + b0 + i;
        chain = _mm512_fmadd_ps(sum[i], scale[i], chain);
        if constexpr (scale16) chain = _mm512_fmadd_ps(sum1[i], scale1[i], chain);
        if constexpr (has_min) chain = _mm512_fmadd_ps(sum1[i], _mm512_set1_ps(a.sum_scaled[b / kChunk][b % kChunk]), chain);
        if (b + 1 == end) {
          total = _mm512_add_ps(total, chain);
          chain = _mm512_setzero_ps();
          ++segment;
          end = segment < segs ? segment_begin(segment + 1, blocks) : -1;
        }
      }
    }
  }
  _mm512_storeu_ps(y, total);
}

}  // namespace strata::simd
