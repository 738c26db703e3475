// Decoders of formats whose codes are grid entries of eight values: IQ1, IQ2; signs, which IQ3 has too.
#pragma once
#include <array>

#include "cpu/kernels/decode.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

// ---- signs -----------------------------------------------------------------------------------------------------

// Seven stored signs a byte; the eighth makes their number even (sign_byte of quant_parts.h).
STRATA_HD void complete_signs(Group* signs, int count) {
  for (int q = 0; q < count; ++q)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Bytes x = and8(vector_of(signs[q], v), splat8(0x7f));
      Bytes parity = xor8(x, right16(x, 4));
      parity = xor8(parity, right16(parity, 2));
      parity = xor8(parity, right16(parity, 1));
      store_bytes(bytes_of(signs[q]) + v * kBytes, or8(x, left16(and8(parity, splat8(1)), 7)));
    }
}

// Signs that a format keeps in the upper bits of its words, as bytes of the rows, 32 a row.
struct SignRows {
  alignas(64) uint8_t row[kFeatures][32];

  STRATA_HD void turn(Group* to) const {
    WeightRows rows;
    for (int f = 0; f < kFeatures; ++f) rows.at[f] = row[f];
    copy_qwords<4>(rows, 0, to);
  }
};

#if STRATA_SIMD == 512
// The four 7-bit fields of each of eight words (the low halves of x), as bytes.
STRATA_HD void store_seven_bits(__m512i x, uint8_t* to) {
  const __m512i fields = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x150e0700), x);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi64_epi32(fields));
}
#else
// The four 7-bit fields of a word, as bytes.
STRATA_HD uint64_t seven_bits(uint64_t word) { return _pdep_u64(word, 0x7f7f7f7full); }
#endif

// ---- entries of eight values -----------------------------------------------------------------------------------

// The feature whose bytes are eight-byte piece i of a group's vector: place() turned round.
constexpr int feature_at(int vector, int i) {
  return STRATA_SIMD == 512 ? 4 * (i >> 1) + 2 * vector + (i & 1)
                            : 8 * (vector >> 1) + 4 * (i >> 1) + 2 * (vector & 1) + (i & 1);
}

STRATA_HD __m128i two_entries(const uint64_t* grid, const PackedTile& tile, int group, int vector, int i) {
  const __m128d low = _mm_load_sd(reinterpret_cast<const double*>(grid + tile.index[feature_at(vector, i)][group]));
  const auto* high = reinterpret_cast<const double*>(grid + tile.index[feature_at(vector, i + 1)][group]);
  return _mm_castpd_si128(_mm_loadh_pd(low, high));
}

// A vector of a group, put together in registers: stores to sixteen scattered lines would take a cycle each.
STRATA_HD Bytes entries(const uint64_t* grid, const PackedTile& tile, int group, int vector) {
  const auto two = [&](int i) { return two_entries(grid, tile, group, vector, i); };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(two(0)), two(2), 1);
#if STRATA_SIMD == 512
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(two(4)), two(6), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
  return low;
#endif
}

// Block b of a format whose group g is bias + or - entry index[g]; byte j of extra[q] has the signs of group 8 q + j.
STRATA_HD void signed_entries(const uint64_t* grid, const PackedTile& tile, int b, int bias, BlockCodes& w) {
  each_code(w, [&](int g, int v) {
    const Mask minus = bits_of(vector_of(tile.extra[b / 2], v), b % 2 * 4 + g);
    return signed_add(splat8(bias), minus, entries(grid, tile, 4 * b + g, v));
  });
}

// index[16 i ..] = low bytes + bits: byte i of `high` shifted to bits 8 .. by `shift` for each of four.
STRATA_HD __m256i wide_index(const uint8_t* low, uint32_t high, __m256i factor, int mask) {
  const __m256i four = _mm256_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 1, -1, 1, -1, 1, -1, 1, -1, 2, -1, 2, -1, 2, -1, 2,
                                        -1, 3, -1, 3, -1, 3, -1, 3, -1);
  const __m256i bits = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(high)), four);
  const __m256i upper = _mm256_and_si256(_mm256_mullo_epi16(bits, factor), _mm256_set1_epi16(static_cast<short>(mask)));
  return _mm256_or_si256(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))), upper);
}

struct GridSigned : Plain {
  static constexpr int bias = 64, top = 126;  // entries reach 62
};

constexpr uint64_t kOnes = 0x0101010101010101ull;  // a byte each

// Four-bit scales s, two a byte in eight bytes at `offset`: 2 s + 1 for each half of a block.
STRATA_HD void odd_half_scales(const WeightRows& rows, int offset, PackedTile& tile) {
  Columns s;
  s.turn_bytes([&](int f) {
    const uint64_t x = load64(rows.at[f] + offset), top = 0x1e1e1e1e1e1e1e1eull;
    return two64((x << 1 & top) | kOnes, (x >> 3 & top) | kOnes);
  });
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) store_ints(tile.half_scale[h][b], s.ints(8 * h + b));
}

// Of eight words `stride` (4 or 8) bytes apart, the top four bits s as 2 s + 1.
template <int stride> STRATA_HD __m128i odd_top_nibbles(const uint8_t* p) {
#if STRATA_SIMD == 512
  const __m512i words =
      stride == 8
          ? load_bytes(p - 4)
          : _mm512_slli_epi64(_mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 32);
  const __m128i odd = _mm512_cvtepi64_epi8(_mm512_srli_epi64(words, 60));
  return _mm_or_si128(_mm_add_epi8(odd, odd), _mm_set1_epi8(1));
#else
  uint64_t x = 0;
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b) x |= static_cast<uint64_t>(p[b * stride + 3]) << 8 * b;
  return two64((x >> 3 & 0x1e1e1e1e1e1e1e1eull) | kOnes, 0);
#endif
}

template <> struct Decode<QuantType::IQ2_XXS> : GridSigned {
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) {
    SignRows signs;
#if STRATA_SIMD == 512
    alignas(64) static constexpr auto low_dwords = [] {  // byte i of a word of indices, as 16 bits
      std::array<uint8_t, 64> x{};
      for (int i = 0; i < 32; ++i) x[static_cast<size_t>(2 * i)] = static_cast<uint8_t>(i / 4 * 8 + i % 4);
      return x;
    }();
    for (int f = 0; f < kFeatures; ++f) {
      const __m512i x = load_bytes(rows.at[f] + 2);
      _mm512_store_si512(tile.index[f],
                         _mm512_maskz_permutexvar_epi8(0x5555555555555555ull, load_bytes(low_dwords.data()), x));
      store_seven_bits(_mm512_srli_epi64(x, 32), signs.row[f]);
    }
#else
    for (int f = 0; f < kFeatures; ++f) {
      const uint8_t* p = rows.at[f] + 2;
#pragma GCC unroll 4
      for (int b = 0; b < kChunkBlocks; b += 2, p += 16) {
        const __m128i wide =
            two64(_pdep_u64(load32(p), 0x00ff00ff00ff00ffull), _pdep_u64(load32(p + 8), 0x00ff00ff00ff00ffull));
        _mm_store_si128(reinterpret_cast<__m128i*>(tile.index[f] + 4 * b), wide);
        const uint64_t seven = seven_bits(load32(p + 4)) | seven_bits(load32(p + 12)) << 32;
        memcpy(signs.row[f] + 4 * b, &seven, 8);
      }
    }
#endif
    signs.turn(tile.extra);
    complete_signs(tile.extra, 4);
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    signed_entries(kGridIq2Xxs, tile, b, bias, w);
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    Columns s;
    s.turn_bytes([&](int f) { return odd_top_nibbles<8>(rows.at[f] + 6); });
    block_scales(s, mul(row_halves(rows, 0), splat(0.125f)), 0, tile);
  }
};

template <> struct Decode<QuantType::IQ2_XS> : GridSigned {
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) {
    SignRows signs;
    for (int f = 0; f < kFeatures; ++f) {
      const __m256i nine = _mm256_set1_epi16(511);
      __m256i words[2];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        words[h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.at[f] + 2 + 32 * h));
        _mm256_store_si256(reinterpret_cast<__m256i*>(tile.index[f] + 16 * h), _mm256_and_si256(words[h], nine));
      }
      const __m256i seven = _mm256_packus_epi16(_mm256_srli_epi16(words[0], 9), _mm256_srli_epi16(words[1], 9));
      _mm256_store_si256(reinterpret_cast<__m256i*>(signs.row[f]), _mm256_permute4x64_epi64(seven, 0xd8));
    }
    signs.turn(tile.extra);
    complete_signs(tile.extra, 4);
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    signed_entries(kGridIq2Xs, tile, b, bias, w);
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    odd_half_scales(rows, 66, tile);
    store_floats(tile.d, mul(row_halves(rows, 0), splat(0.125f)));
  }
};

template <> struct Decode<QuantType::IQ2_S> : GridSigned {
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) {
    const __m256i factor = _mm256_set1_epi64x(0x0004001000400100ll);
    for (int f = 0; f < kFeatures; ++f)
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h)
        _mm256_store_si256(reinterpret_cast<__m256i*>(tile.index[f] + 16 * h),
                           wide_index(rows.at[f] + 2 + 16 * h, load32(rows.at[f] + 66 + 4 * h), factor, 0x300));
    copy_qwords<4>(rows, 34, tile.extra);
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    signed_entries(kGridIq2S, tile, b, bias, w);
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    odd_half_scales(rows, 74, tile);
    store_floats(tile.d, mul(row_halves(rows, 0), splat(0.125f)));
  }
};

// The grid of IQ1 as codes + 9: of entries with delta -1, then of those with delta +1.
inline constexpr std::array<uint64_t, 4096> kGridIq1Biased = [] {
  std::array<uint64_t, 4096> grid{};
  for (int e = 0; e < 4096; ++e)
    for (int j = 0; j < 8; ++j) {
      const auto code = static_cast<uint8_t>((kGridIq1S[e % 2048] >> 8 * j & 255) + 8 + e / 2048 * 2);
      grid[static_cast<size_t>(e)] |= static_cast<uint64_t>(code) << 8 * j;
    }
  return grid;
}();

#if STRATA_SIMD == 512
// Bytes as indices.
STRATA_HD __m512i low_index(const uint8_t* p) {
  return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#endif

struct GridBiased : Plain {
  static constexpr int bias = 9, top = 18;

  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return entries(kGridIq1Biased.data(), tile, 4 * b + g, v); });
  }
};

template <> struct Decode<QuantType::IQ1_S> : GridBiased {
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) {
#if STRATA_SIMD == 512
    for (int f = 0; f < kFeatures; ++f) {  // each word for four entries: three upper bits; bit 15 clear: delta + 1
      const __m512i words = _mm512_permutexvar_epi16(
          _mm512_cvtepu8_epi16(_mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5,
                                                6, 6, 6, 6, 7, 7, 7, 7)),
          _mm512_castsi128_si512(load128(rows.at[f] + 34)));
      const __m512i three = _mm512_srlv_epi16(words, _mm512_set1_epi64(0x0009000600030000ll));
      const __m512i upper = _mm512_slli_epi16(_mm512_and_si512(three, _mm512_set1_epi16(7)), 8);
      const __m512i plus = _mm512_andnot_si512(_mm512_srli_epi16(words, 4), _mm512_set1_epi16(0x800));
      _mm512_store_si512(tile.index[f], _mm512_or_si512(_mm512_or_si512(upper, plus), low_index(rows.at[f] + 2)));
    }
#else
    for (int f = 0; f < kFeatures; ++f) {
      const uint8_t* p = rows.at[f];
#pragma GCC unroll 8
      for (int b = 0; b < kChunkBlocks; ++b) {  // four times three upper bits; bit 15 clear: delta + 1
        const uint64_t word = load16(p + 34 + 2 * b);
        const uint64_t wide = _pdep_u64(load32(p + 2 + 4 * b), 0x00ff00ff00ff00ffull) |
                              _pdep_u64(word, 0x0700070007000700ull) | (word & 0x8000 ? 0 : 0x0800080008000800ull);
        memcpy(tile.index[f] + 4 * b, &wide, 8);
      }
    }
#endif
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    Columns s;
    s.turn_bytes([&](int f) {  // bits 12 .. 14 of eight words
      const __m128i three = _mm_and_si128(_mm_srli_epi16(load128(rows.at[f] + 34), 11), _mm_set1_epi16(14));
      return _mm_packus_epi16(_mm_or_si128(three, _mm_set1_epi16(1)), _mm_setzero_si128());
    });
    block_scales(s, mul(row_halves(rows, 0), splat(0.125f)), 0, tile);
  }
};

template <> struct Decode<QuantType::IQ1_M> : GridBiased {
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) {
#if STRATA_SIMD == 512
    for (int f = 0; f < kFeatures; ++f) {  // nibbles: three upper bits, then a bit that is clear for delta + 1
      const __m512i twice = _mm512_permutexvar_epi8(
          _mm512_cvtepu8_epi16(_mm256_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11,
                                                11, 12, 12, 13, 13, 14, 14, 15, 15)),
          _mm512_castsi128_si512(load128(rows.at[f] + 32)));
      const __m512i upper =
          _mm512_and_si512(_mm512_sllv_epi16(twice, _mm512_set1_epi32(0x00040008)), _mm512_set1_epi16(0xf00));
      _mm512_store_si512(tile.index[f],
                         _mm512_or_si512(_mm512_xor_si512(upper, _mm512_set1_epi16(0x800)), low_index(rows.at[f])));
    }
#else
    for (int f = 0; f < kFeatures; ++f) {
      const uint8_t* p = rows.at[f];
#pragma GCC unroll 8
      for (int b = 0; b < kChunkBlocks; ++b) {  // nibbles: three upper bits, then a bit that is clear for delta + 1
        const uint64_t wide = _pdep_u64(load32(p + 4 * b), 0x00ff00ff00ff00ffull) |
                              _pdep_u64(load16(p + 32 + 2 * b) ^ 0x8888u, 0x0f000f000f000f00ull);
        memcpy(tile.index[f] + 4 * b, &wide, 8);
      }
    }
#endif
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    Columns s;
    alignas(32) uint16_t half[kFeatures];
    s.turn_bytes([&](int f) {  // per 64 values a word: four 3-bit scales, and four bits of d
      const uint64_t words = load64(rows.at[f] + 48), odd = 0x0e0e0e0e0e0e0e0eull;
      half[f] = static_cast<uint16_t>(_pext_u64(words, 0xf000f000f000f000ull));
      const uint64_t three = _pext_u64(words, 0x0fff0fff0fff0fffull);
      return two64(_pdep_u64(three, odd) | kOnes, _pdep_u64(three >> 24, odd) | kOnes);
    });
    half_scales(s, false, tile);
    store_floats(tile.d, mul(floats_half(load128(half), load128(half + 8)), splat(0.125f)));
  }
};

}  // namespace strata::STRATA_LEVEL
#endif
