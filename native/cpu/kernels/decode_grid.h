// Decoders of formats whose codes are entries of a grid: IQ1, IQ2, IQ3.
#pragma once
#include <array>

#include "cpu/kernels/decode.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

// ---- signs -----------------------------------------------------------------------------------------------------

// Seven stored signs a byte; the eighth makes their number even (sign_byte of quant_parts.h).
STRATA_HD void complete_signs(Group* signs, int count) {
  for (int q = 0; q < count; ++q)
    each_vector([&](int at) {
      uint8_t* p = bytes_of(signs[q]) + at;
      const Bytes x = and8(load_bytes(p), splat8(0x7f));
      Bytes parity = xor8(x, right16(x, 4));
      parity = xor8(parity, right16(parity, 2));
      parity = xor8(parity, right16(parity, 1));
      store_bytes(p, or8(x, left16(and8(parity, splat8(1)), 7)));
    });
}

// codes = bias + or - codes; byte j of signs[q] belongs to group 8 q + j.
STRATA_HD void apply_signs(Group* signs, int bias, PackedTile& tile) {
  const Bytes base = splat8(bias);
  for (int q = 0; q < 4; ++q)
    each_vector([&](int at) {
      const Bytes s = load_bytes(bytes_of(signs[q]) + at);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        uint8_t* p = bytes_of(tile.codes[8 * q + j]) + at;
        store_bytes(p, signed_add(base, bits_of(s, j), load_bytes(p)));
      }
    });
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

// ---- entries of eight values -----------------------------------------------------------------------------------

// Codes of feature f: group i is the grid's entry index[i].
STRATA_HD void put_entries(const uint64_t* grid, const uint16_t* index, int f, PackedTile& tile) {
  uint64_t* to = tile.codes[0] + place(f);
#pragma GCC unroll 8
  for (int i = 0; i < kChunkBlocks * kGroups; ++i) to[i * kFeatures] = grid[index[i]];
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
  static constexpr int bias = 64;  // codes reach 62: bytes stay below 128
};

// Four-bit scales s, two a byte in eight bytes at `offset`: 2 s + 1 for each half of a block.
STRATA_HD void odd_half_scales(const WeightRows& rows, int offset, PackedTile& tile) {
  ScaleBytes s;
  for (int f = 0; f < kFeatures; ++f) {
    const uint64_t x = load64(rows.at[f] + offset), four = 0x0f0f0f0f0f0f0f0full;
    const uint64_t out[2] = {(x & four) << 1 | 0x0101010101010101ull, (x >> 3 & (four << 1)) | 0x0101010101010101ull};
    memcpy(s.row[f], out, 16);
  }
  s.turn();
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) store_ints(tile.half_scale[h][b], s.ints(8 * h + b));
}

template <> struct Decode<QuantType::IQ2_XXS> : GridSigned {
  STRATA_HD static void codes(const WeightRows& rows, int, PackedTile& tile) {
    SignRows signs;
    for (int f = 0; f < kFeatures; ++f) {
      const uint8_t* p = rows.at[f] + 2;
      uint64_t* to = tile.codes[0] + place(f);
      for (int b = 0; b < kChunkBlocks; ++b, p += 8) {
#pragma GCC unroll 4
        for (int l = 0; l < 4; ++l, to += kFeatures) *to = kGridIq2Xxs[p[l]];
        const uint32_t out = _pdep_u32(load32(p + 4), 0x7f7f7f7fu);
        memcpy(signs.row[f] + 4 * b, &out, 4);
      }
    }
    alignas(64) Group turned[4];
    signs.turn(turned);
    complete_signs(turned, 4);
    apply_signs(turned, bias, tile);
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    ScaleBytes s;
    for (int f = 0; f < kFeatures; ++f)
      for (int b = 0; b < kChunkBlocks; ++b) s.row[f][b] = static_cast<uint8_t>((rows.at[f][9 + 8 * b] >> 4) * 2 + 1);
    s.turn();
    block_scales(s, mul(row_halves(rows, 0), splat(0.125f)), false, tile);
  }
};

template <> struct Decode<QuantType::IQ2_XS> : GridSigned {
  STRATA_HD static void codes(const WeightRows& rows, int, PackedTile& tile) {
    SignRows signs;
    for (int f = 0; f < kFeatures; ++f) {
      alignas(64) uint16_t index[32];
      const __m256i nine = _mm256_set1_epi16(511);
      __m256i words[2];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        words[h] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.at[f] + 2 + 32 * h));
        _mm256_store_si256(reinterpret_cast<__m256i*>(index + 16 * h), _mm256_and_si256(words[h], nine));
      }
      const __m256i seven = _mm256_packus_epi16(_mm256_srli_epi16(words[0], 9), _mm256_srli_epi16(words[1], 9));
      _mm256_store_si256(reinterpret_cast<__m256i*>(signs.row[f]), _mm256_permute4x64_epi64(seven, 0xd8));
      put_entries(kGridIq2Xs, index, f, tile);
    }
    alignas(64) Group turned[4];
    signs.turn(turned);
    complete_signs(turned, 4);
    apply_signs(turned, bias, tile);
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    odd_half_scales(rows, 66, tile);
    store_floats(tile.d, mul(row_halves(rows, 0), splat(0.125f)));
  }
};

template <> struct Decode<QuantType::IQ2_S> : GridSigned {
  STRATA_HD static void codes(const WeightRows& rows, int, PackedTile& tile) {
    const __m256i factor = _mm256_set1_epi64x(0x0004001000400100ll);
    for (int f = 0; f < kFeatures; ++f) {
      const uint8_t* p = rows.at[f];
      alignas(64) uint16_t index[32];
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h)
        _mm256_store_si256(reinterpret_cast<__m256i*>(index + 16 * h),
                           wide_index(p + 2 + 16 * h, load32(p + 66 + 4 * h), factor, 0x300));
      put_entries(kGridIq2S, index, f, tile);
    }
    alignas(64) Group signs[4];
    copy_qwords<4>(rows, 34, signs);
    apply_signs(signs, bias, tile);
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    odd_half_scales(rows, 74, tile);
    store_floats(tile.d, mul(row_halves(rows, 0), splat(0.125f)));
  }
};

// The grid of IQ1 made unsigned: codes are entry + 8 +- 1.
inline constexpr std::array<uint64_t, 2048> kGridIq1Unsigned = [] {
  std::array<uint64_t, 2048> grid{};
  for (int e = 0; e < 2048; ++e)
    for (int j = 0; j < 8; ++j)
      grid[e] |= static_cast<uint64_t>(static_cast<uint8_t>((kGridIq1S[e] >> 8 * j & 255) + 8)) << 8 * j;
  return grid;
}();

struct GridOne : Plain {
  static constexpr int bias = 9;
  static constexpr uint64_t kPlus = 0x0202020202020202ull;  // of delta + 1

  // An entry of eleven bits with its delta: bit 3 of `nibble` is the sign, the rest the index's upper bits.
  STRATA_HD static uint64_t entry(uint32_t low, uint32_t nibble, bool minus) {
    return kGridIq1Unsigned[low | (nibble & 7) << 8] + (minus ? 0 : kPlus);
  }
};

template <> struct Decode<QuantType::IQ1_S> : GridOne {
  STRATA_HD static void codes(const WeightRows& rows, int, PackedTile& tile) {
    for (int f = 0; f < kFeatures; ++f) {
      const uint8_t* p = rows.at[f];
      uint64_t* to = tile.codes[0] + place(f);
      for (int b = 0; b < kChunkBlocks; ++b) {
        const uint32_t word = load16(p + 34 + 2 * b);
#pragma GCC unroll 4
        for (int l = 0; l < 4; ++l, to += kFeatures) *to = entry(p[2 + 4 * b + l], word >> 3 * l, word & 0x8000);
      }
    }
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    ScaleBytes s;
    for (int f = 0; f < kFeatures; ++f)
      for (int b = 0; b < kChunkBlocks; ++b)
        s.row[f][b] = static_cast<uint8_t>((rows.at[f][35 + 2 * b] >> 4 & 7) * 2 + 1);
    s.turn();
    block_scales(s, mul(row_halves(rows, 0), splat(0.125f)), false, tile);
  }
};

template <> struct Decode<QuantType::IQ1_M> : GridOne {
  STRATA_HD static void codes(const WeightRows& rows, int, PackedTile& tile) {
    for (int f = 0; f < kFeatures; ++f) {
      const uint8_t* p = rows.at[f];
      uint64_t* to = tile.codes[0] + place(f);
      for (int b = 0; b < kChunkBlocks; ++b) {
        const uint32_t nibbles = load16(p + 32 + 2 * b);
#pragma GCC unroll 4
        for (int l = 0; l < 4; ++l, to += kFeatures)
          *to = entry(p[4 * b + l], nibbles >> 4 * l, nibbles >> 4 * l & 8);
      }
    }
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    ScaleBytes s;
    alignas(64) uint16_t half[kFeatures];
    for (int f = 0; f < kFeatures; ++f) {  // per 64 values a word: four 3-bit scales, and four bits of d
      const uint64_t words = load64(rows.at[f] + 48);
      for (int i = 0; i < 16; ++i) s.row[f][i] = static_cast<uint8_t>((words >> (16 * (i / 4) + 3 * (i % 4)) & 7) * 2 + 1);
      half[f] = static_cast<uint16_t>(_pext_u64(words, 0xf000f000f000f000ull));
    }
    s.turn();
    half_scales(s, false, tile);
    store_floats(tile.d, mul(floats_half(half), splat(0.125f)));
  }
};

// ---- entries of four values ------------------------------------------------------------------------------------

#if STRATA_SIMD == 512

// A grid of four-byte entries as four planes of bytes, looked up in registers: byte i of group j is then value
// 4 i + j, and sign 4 i + j of the block's 32 belongs to it.
template <int entries> using BytePlanes = std::array<std::array<uint8_t, entries>, 4>;

template <int entries> constexpr BytePlanes<entries> byte_planes(const uint32_t (&grid)[entries]) {
  BytePlanes<entries> planes{};
  for (int e = 0; e < entries; ++e)
    for (int j = 0; j < 4; ++j) planes[j][e] = static_cast<uint8_t>(grid[e] >> 8 * j);
  return planes;
}

alignas(64) inline constexpr BytePlanes<256> kPlanesIq3Xxs = byte_planes(kGridIq3Xxs);
alignas(64) inline constexpr BytePlanes<512> kPlanesIq3S = byte_planes(kGridIq3S);

STRATA_HD Bytes lookup256(const uint8_t* plane, Bytes index, Mask upper) {
  const Bytes low = _mm512_permutex2var_epi8(load_bytes(plane), index, load_bytes(plane + 64));
  const Bytes high = _mm512_permutex2var_epi8(load_bytes(plane + 128), index, load_bytes(plane + 192));
  return _mm512_mask_blend_epi8(upper, low, high);
}

// Signs of block b in the order of the planes: group j's are the bytes of the result that have bit j or j + 4 set.
STRATA_HD Bytes plane_signs(Group* signs, int b, int at) {
  alignas(16) static constexpr uint8_t order[2][16] = {{0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11},
                                                       {4, 4, 5, 5, 6, 6, 7, 7, 12, 12, 13, 13, 14, 14, 15, 15}};
  return shuffle16(load_bytes(bytes_of(signs[b / 2]) + at), splat128(order[b % 2]));
}

template <class Lookup>
STRATA_HD void plane_codes(Group* index, Group* signs, int bias, PackedTile& tile, Lookup&& lookup) {
  for (int b = 0; b < kChunkBlocks; ++b)
    each_vector([&](int at) {
      const Bytes entries = load_bytes(bytes_of(index[b]) + at), s = plane_signs(signs, b, at);
      const Mask upper = _mm512_movepi8_mask(entries);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        store_bytes(bytes_of(tile.codes[4 * b + j]) + at,
                    signed_add(splat8(bias), test8(s, splat16(0x1001 << j)), lookup(j, entries, upper, b, at)));
    });
}

#else

// Codes of feature f: half a group is the grid's entry index[i].
STRATA_HD void put_half_entries(const uint32_t* grid, const uint16_t* index, int f, PackedTile& tile) {
  for (int i = 0; i < kChunkBlocks * kGroups; ++i)
    tile.codes[i][place(f)] = grid[index[2 * i]] | static_cast<uint64_t>(grid[index[2 * i + 1]]) << 32;
}

#endif

template <> struct Decode<QuantType::IQ3_XXS> : GridSigned {
  static constexpr bool strided = STRATA_SIMD == 512;
  STRATA_HD static void codes(const WeightRows& rows, int, PackedTile& tile) {
    SignRows signs;
    for (int f = 0; f < kFeatures; ++f)
      for (int b = 0; b < kChunkBlocks; ++b) {
        const uint32_t out = _pdep_u32(load32(rows.at[f] + 66 + 4 * b), 0x7f7f7f7fu);
        memcpy(signs.row[f] + 4 * b, &out, 4);
      }
    alignas(64) Group turned[4];
    signs.turn(turned);
    complete_signs(turned, 4);
#if STRATA_SIMD == 512
    alignas(64) Group index[8];
    copy_qwords<8>(rows, 2, index);
    plane_codes(index, turned, bias, tile, [](int j, Bytes entries, Mask upper, int, int) {
      return lookup256(kPlanesIq3Xxs[j].data(), entries, upper);
    });
#else
    for (int f = 0; f < kFeatures; ++f) {
      uint16_t index[64];
      for (int i = 0; i < 64; ++i) index[i] = rows.at[f][2 + i];
      put_half_entries(kGridIq3Xxs, index, f, tile);
    }
    apply_signs(turned, bias, tile);
#endif
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    ScaleBytes s;
    for (int f = 0; f < kFeatures; ++f)
      for (int b = 0; b < kChunkBlocks; ++b) s.row[f][b] = static_cast<uint8_t>((rows.at[f][69 + 4 * b] >> 4) * 2 + 1);
    s.turn();
    block_scales(s, mul(row_halves(rows, 0), splat(0.25f)), false, tile);
  }
};

template <> struct Decode<QuantType::IQ3_S> : GridSigned {
  static constexpr bool strided = STRATA_SIMD == 512;
  STRATA_HD static void codes(const WeightRows& rows, int, PackedTile& tile) {
    alignas(64) Group signs[4];
    copy_qwords<4>(rows, 74, signs);
#if STRATA_SIMD == 512
    alignas(64) Group index[8], ninth[1];
    copy_qwords<8>(rows, 2, index);
    copy_qwords<1>(rows, 66, ninth);
    plane_codes(index, signs, bias, tile, [&](int j, Bytes entries, Mask upper, int b, int at) {
      const uint8_t* plane = kPlanesIq3S[j].data();
      const Mask top = bits_of(load_bytes(bytes_of(ninth[0]) + at), b);
      return _mm512_mask_blend_epi8(top, lookup256(plane, entries, upper), lookup256(plane + 256, entries, upper));
    });
#else
    for (int f = 0; f < kFeatures; ++f) {
      uint16_t index[64];
      for (int i = 0; i < 64; ++i)
        index[i] = static_cast<uint16_t>(rows.at[f][2 + i] | (rows.at[f][66 + i / 8] >> i % 8 & 1) << 8);
      put_half_entries(kGridIq3S, index, f, tile);
    }
    apply_signs(signs, bias, tile);
#endif
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    ScaleBytes s;
    for (int f = 0; f < kFeatures; ++f) {
      const uint64_t four = _pdep_u64(load32(rows.at[f] + 106), 0x0f0f0f0f0f0f0f0full);
      const uint64_t out = four << 1 | 0x0101010101010101ull;
      memcpy(s.row[f], &out, 8);
    }
    s.turn();
    block_scales(s, row_halves(rows, 0), false, tile);
  }
};

}  // namespace strata::STRATA_LEVEL
#endif
