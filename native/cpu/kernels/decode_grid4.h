// Decoders of formats whose codes are grid entries of four values: IQ3.
#pragma once
#include "cpu/kernels/decode_grid.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

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

// Block b: raw[b] has eight indices a row; lookup(j, indices, upper, v) looks them up in plane j.
template <class Lookup>
STRATA_HD void plane_codes(const PackedTile& tile, int b, int bias, BlockCodes& w, Lookup&& lookup) {
  alignas(16) static constexpr uint8_t order[2][16] = {{0, 0, 1, 1, 2, 2, 3, 3, 8, 8, 9, 9, 10, 10, 11, 11},
                                                       {4, 4, 5, 5, 6, 6, 7, 7, 12, 12, 13, 13, 14, 14, 15, 15}};
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const Bytes index = vector_of(tile.raw[b], v),
                s = shuffle16(vector_of(tile.extra[b / 2], v), splat128(order[b % 2]));
    const Mask upper = _mm512_movepi8_mask(index);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      w[j][v] = signed_add(splat8(bias), test8(s, splat16(0x1001 << j)), lookup(j, index, upper, v));
  }
}

#else

// Vector v of a group that is entries 2 group and 2 group + 1 of four values.
STRATA_HD Bytes half_entries(const uint32_t* grid, const PackedTile& tile, int group, int vector) {
  const auto entry = [&](int i) {
    return static_cast<int>(grid[tile.index[feature_at(vector, i / 2)][2 * group + i % 2]]);
  };
  return _mm256_setr_epi32(entry(0), entry(1), entry(2), entry(3), entry(4), entry(5), entry(6), entry(7));
}

// Block b of a format whose group g is bias + or - two such entries.
STRATA_HD void signed_half_entries(const uint32_t* grid, const PackedTile& tile, int b, int bias, BlockCodes& w) {
  each_code(w, [&](int g, int v) {
    const Mask minus = bits_of(vector_of(tile.extra[b / 2], v), b % 2 * 4 + g);
    return signed_add(splat8(bias), minus, half_entries(grid, tile, 4 * b + g, v));
  });
}

STRATA_HD __m256i wide_bytes(const uint8_t* p) { return _mm256_cvtepu8_epi16(load128(p)); }

#endif

template <> struct Decode<QuantType::IQ3_XXS> : GridSigned {
  static constexpr bool strided = STRATA_SIMD == 512;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) {
    SignRows signs;
    for (int f = 0; f < kFeatures; ++f) {
#if STRATA_SIMD == 512
      store_seven_bits(_mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.at[f] + 66))),
                       signs.row[f]);
#else
      for (int b = 0; b < kChunkBlocks; b += 2) {
        const uint64_t words = load64(rows.at[f] + 66 + 4 * b);
        const uint64_t seven = seven_bits(words & 0xffffffffu) | seven_bits(words >> 32) << 32;
        memcpy(signs.row[f] + 4 * b, &seven, 8);
      }
#endif
    }
    signs.turn(tile.extra);
    complete_signs(tile.extra, 4);
#if STRATA_SIMD == 512
    copy_qwords<8>(rows, 2, tile.raw);
#else
    for (int f = 0; f < kFeatures; ++f)
      for (int i = 0; i < 64; i += 16) store_bytes(tile.index[f] + i, wide_bytes(rows.at[f] + 2 + i));
#endif
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
#if STRATA_SIMD == 512
    plane_codes(tile, b, bias, w, [](int j, Bytes index, Mask upper, int) {
      return lookup256(kPlanesIq3Xxs[static_cast<size_t>(j)].data(), index, upper);
    });
#else
    signed_half_entries(kGridIq3Xxs, tile, b, bias, w);
#endif
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    Columns s;
    s.turn_bytes([&](int f) { return odd_top_nibbles<4>(rows.at[f] + 66); });
    block_scales(s, mul(row_halves(rows, 0), splat(0.25f)), 0, tile);
  }
};

template <> struct Decode<QuantType::IQ3_S> : GridSigned {
  static constexpr int bias = 16, top = 31;  // entries reach 15
  static constexpr bool strided = STRATA_SIMD == 512;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) {
    copy_qwords<4>(rows, 74, tile.extra);
#if STRATA_SIMD == 512
    copy_qwords<8>(rows, 2, tile.raw);
    copy_qwords<1>(rows, 66, tile.raw + 8);  // ninth bits
#else
    const __m256i bit = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, -32768);
    for (int f = 0; f < kFeatures; ++f)
      for (int i = 0; i < 64; i += 16) {
        const __m256i ninth = _mm256_set1_epi16(static_cast<short>(load16(rows.at[f] + 66 + i / 8)));
        const __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(ninth, bit), bit);
        const __m256i upper = _mm256_and_si256(set, _mm256_set1_epi16(256));
        store_bytes(tile.index[f] + i, _mm256_or_si256(wide_bytes(rows.at[f] + 2 + i), upper));
      }
#endif
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
#if STRATA_SIMD == 512
    plane_codes(tile, b, bias, w, [&](int j, Bytes index, Mask upper, int v) {
      const uint8_t* plane = kPlanesIq3S[static_cast<size_t>(j)].data();
      const Mask top = bits_of(vector_of(tile.raw[8], v), b);
      return _mm512_mask_blend_epi8(top, lookup256(plane, index, upper), lookup256(plane + 256, index, upper));
    });
#else
    signed_half_entries(kGridIq3S, tile, b, bias, w);
#endif
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    Columns s;
    s.turn_bytes([&](int f) { return two64(_pdep_u64(load32(rows.at[f] + 106), 0x1e1e1e1e1e1e1e1eull) | kOnes, 0); });
    block_scales(s, row_halves(rows, 0), 0, tile);
  }
};

}  // namespace strata::STRATA_LEVEL
#endif
