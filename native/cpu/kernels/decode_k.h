// Decoders of formats with blocks of 256 values in bit fields: Q2_K to Q6_K, IQ4_XS, TQ1_0, TQ2_0.
#pragma once
#include "cpu/kernels/decode.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

template <> struct Decode<QuantType::Q2_K> : Plain {
  static constexpr int top = 3;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) { copy_qwords<8>(rows, 16, tile.raw); }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return field8(vector_of(tile.raw[b / 4 * 4 + g], v), b % 4 * 2, 3); });
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
#if STRATA_SIMD == 512
    Columns s;
    s.turn_bytes([&](int f) { return load128(rows.at[f]); });
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const Ints both = s.ints(i), scale = and_int(both, splat_int(15));
      store_ints(tile.half_scale[i % 2][i / 2], scale);
      store_ints(tile.half_min[i % 2][i / 2], right_int(sub(both, scale), 4));
    }
#else
    alignas(64) Group turned[2];
    transpose_pairs(rows, 0, turned[0], turned[1]);
    const Ints four = splat_int(15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // four pairs a word: two blocks
      const Ints word = i % 2 ? high_words(turned[i / 2]) : low_words(turned[i / 2]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        store_ints(tile.half_scale[j % 2][2 * i + j / 2], and_int(right_int(word, 8 * j), four));
        store_ints(tile.half_min[j % 2][2 * i + j / 2], and_int(right_int(word, 8 * j + 4), four));
      }
    }
#endif
    store_floats(tile.d, row_halves(rows, 80));
    store_floats(tile.dmin, mul(row_halves(rows, 82), splat(-1.0f)));
  }
};

template <> struct Decode<QuantType::Q3_K> : Plain {
  static constexpr int bias = 4, top = 7;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) { copy_qwords<12>(rows, 0, tile.raw); }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) {
      const Bytes low = field8(vector_of(tile.raw[4 + b / 4 * 4 + g], v), b % 4 * 2, 3);
      return add_where(low, test8(vector_of(tile.raw[g], v), splat8(1 << b)), splat8(4));
    });
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    Columns s;
    s.turn_bytes([&](int f) { return six_bits(rows.at[f] + 96); });
    half_scales(s, true, tile);
    store_floats(tile.d, row_halves(rows, 108));
  }
  // Twelve bytes: low four bits of sixteen scales (8 bytes), high two (4 bytes, scale i at bits 2 (i / 4)); less 32.
  STRATA_HD static __m128i six_bits(const uint8_t* p) {
    const uint64_t low = load64(p), four = 0x0f0f0f0f0f0f0f0full, two = 0x0303030303030303ull;
    const uint64_t high = load32(p + 8) * 0x100000001ull;
    const uint64_t first = (high & 0xffffffffu) | (high >> 34 << 32), second = first >> 4;
    const uint64_t a = ((low & four) | (first & two) << 4) ^ 0x2020202020202020ull;  // 6 bits less 32: flip the top,
    const uint64_t b = ((low >> 4 & four) | (second & two) << 4) ^ 0x2020202020202020ull;
    const uint64_t sign = 0x2020202020202020ull;  // and extend it
    const uint64_t x = a | (a & sign) << 1 | (a & sign) << 2, y = b | (b & sign) << 1 | (b & sign) << 2;
    return two64(x, y);
  }
};

#if STRATA_SIMD == 512
constexpr uint32_t kFour = 0x0f0f0f0fu, kSix = 0x3f3f3f3fu, kTop = 0x30303030u;

STRATA_HD __m512i lanes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return _mm512_set4_epi32(static_cast<int>(d), static_cast<int>(c), static_cast<int>(b), static_cast<int>(a));
}
#endif

#if STRATA_SIMD == 512
// Scales and minimums of Q4_K and Q5_K: pairs of 6-bit numbers in twelve bytes at offset 4.
STRATA_HD void scales_and_mins(const WeightRows& rows, PackedTile& tile) {
  Columns s;
  __m512i raw[4], numbers[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // words of a lane: d and dmin, w0, w1, w2
    raw[i] = Columns::four(i, [&](int f) { return load128(rows.at[f]); });
    const __m512i low =
        _mm512_srlv_epi32(_mm512_shuffle_epi32(raw[i], static_cast<_MM_PERM_ENUM>(0xed)),  // w0 w2 w1 w2
                          lanes(0, 0, 0, 4));
    const __m512i high = _mm512_srli_epi32(_mm512_shuffle_epi32(raw[i], static_cast<_MM_PERM_ENUM>(0x84)), 2);
    numbers[i] = _mm512_or_si512(_mm512_and_si512(low, lanes(kSix, kFour, kSix, kFour)),
                                 _mm512_and_si512(high, lanes(0, kTop, 0, kTop)));
  }
  s.turn_fours(numbers);
  const __m512i every4 = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const __m512i low = _mm512_permutex2var_epi32(raw[0], every4, raw[1]);
  const __m512i both = _mm512_mask_permutexvar_epi64(low, 0xf0, _mm512_setr_epi64(0, 1, 2, 3, 0, 1, 2, 3),
                                                     _mm512_permutex2var_epi32(raw[2], every4, raw[3]));
  const Floats d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
  const Floats dmin = mul(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16))), splat(-1.0f));
  block_scales(s, d, 0, tile);
#pragma GCC unroll 8
  for (int b = 0; b < kChunkBlocks; ++b) store_floats(tile.min[b], mul(dmin, to_floats(s.ints(8 + b))));
}
#else
// Scales and minimums of Q4_K and Q5_K: pairs of 6-bit numbers in twelve bytes at offset 4, of sixteen rows side by side.
STRATA_HD void scales_and_mins(const WeightRows& rows, PackedTile& tile) {
  alignas(64) Group header[2];
  transpose_pairs(rows, 0, header[0], header[1]);
  const Ints halves = low_words(header[0]), w0 = high_words(header[0]), w1 = low_words(header[1]),
             w2 = high_words(header[1]);
  const Floats d = low_halves(halves), dmin = mul(low_halves(right_int(halves, 16)), splat(-1.0f));
  const auto upper = [&](Ints four, int shift, Ints two, int b) {  // low four bits of one word, upper two of another
    const Ints top = and_int(right_int(two, 8 * b + 2), splat_int(0x30));
    return add(and_int(right_int(four, 8 * b + shift), splat_int(15)), top);
  };
#pragma GCC unroll 4
  for (int b = 0; b < 4; ++b) {
    const Ints six = splat_int(63);
    store_floats(tile.scale[0][b], mul(d, to_floats(and_int(right_int(w0, 8 * b), six))));
    store_floats(tile.min[b], mul(dmin, to_floats(and_int(right_int(w1, 8 * b), six))));
    store_floats(tile.scale[0][4 + b], mul(d, to_floats(upper(w2, 0, w0, b))));
    store_floats(tile.min[4 + b], mul(dmin, to_floats(upper(w2, 4, w1, b))));
  }
}
#endif

template <> struct Decode<QuantType::Q4_K> : Plain {
  static constexpr int top = 15;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) { copy_qwords<16>(rows, 16, tile.raw); }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return field8(vector_of(tile.raw[b / 2 * 4 + g], v), b % 2 * 4, 15); });
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) { scales_and_mins(rows, tile); }
};

template <> struct Decode<QuantType::Q5_K> : Plain {
  static constexpr int top = 31;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) { copy_qwords<20>(rows, 16, tile.raw); }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) {
      const Bytes low = field8(vector_of(tile.raw[4 + b / 2 * 4 + g], v), b % 2 * 4, 15);
      return add_where(low, test8(vector_of(tile.raw[g], v), splat8(1 << b)), splat8(16));
    });
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) { scales_and_mins(rows, tile); }
};

template <> struct Decode<QuantType::Q6_K> : Plain {
  static constexpr int bias = 32, top = 63;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) { copy_qwords<24>(rows, 0, tile.raw); }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) {
      const int part = b / 4, r = b % 4;
      const Bytes low = field8(vector_of(tile.raw[8 * part + 4 * (r % 2) + g], v), 4 * (r / 2), 15);
      const Bytes high = vector_of(tile.raw[16 + 4 * part + g], v);
      return or8(low, and8(r < 2 ? left16(high, 4 - 2 * r) : right16(high, 2 * r - 4), splat8(0x30)));
    });
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
#if STRATA_SIMD == 512
    Columns s;
    s.turn_bytes([&](int f) { return load128(rows.at[f] + 192); });
    half_scales(s, true, tile);
#else
    alignas(64) Group turned[2];
    transpose_pairs(rows, 192, turned[0], turned[1]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // four scales a word: two blocks
      const Ints word = i % 2 ? high_words(turned[i / 2]) : low_words(turned[i / 2]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j)
        store_ints(tile.half_scale[j % 2][2 * i + j / 2], signed_right_int(left_int(word, 24 - 8 * j), 24));
    }
#endif
    store_floats(tile.d, row_halves(rows, 208));
  }
};

template <> struct Decode<QuantType::IQ4_XS> : Plain {
  static constexpr bool is_signed = !STRATA_VNNI;
  static constexpr int bias = is_signed ? 0 : 127, top = is_signed ? 127 : 240;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) { copy_qwords<16>(rows, 8, tile.raw); }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    const Bytes values = add8(splat128(kIq4Values), splat8(bias));
    each_code(w, [&](int g, int v) {
      return shuffle16(values, field8(vector_of(tile.raw[2 * b + g % 2], v), g / 2 * 4, 15));
    });
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    Columns s;
    s.turn_bytes([&](int f) {
      const uint64_t low = _pdep_u64(load32(rows.at[f] + 4), 0x0f0f0f0f0f0f0f0full);
      return two64(low | _pdep_u64(load16(rows.at[f] + 2), 0x3030303030303030ull), 0);
    });
    block_scales(s, row_halves(rows, 0), 32, tile);
  }
};

template <> struct Decode<QuantType::TQ2_0> : Plain {
  static constexpr int bias = 1, top = 3;
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) { copy_qwords<8>(rows, 0, tile.raw); }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return field8(vector_of(tile.raw[b / 4 * 4 + g], v), b % 4 * 2, 3); });
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    same_scale(row_halves(rows, 64), tile);
  }
};

template <> struct Decode<QuantType::TQ1_0> : Plain {
  static constexpr int bias = 1, top = 3;
  // The leading base-3 digit of x / 256: 3 x / 256 rounded down.
  STRATA_HD static Bytes digit(Bytes x) {
    return add8(min8(less8(x, splat8(85)), splat8(1)), min8(less8(x, splat8(170)), splat8(1)));
  }
  STRATA_HD static Bytes times3(Bytes x) { return add8(add8(x, x), x); }

  // Digits 0 .. count - 1 of `from` are groups first + step * digit.
  STRATA_HD static void digits(const Group& from, int first, int step, int count, PackedTile& tile) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Bytes x = vector_of(from, v);
      for (int i = 0; i < count; ++i, x = times3(x))
        store_bytes(bytes_of(tile.raw[first + step * i]) + v * kBytes, digit(x));
    }
  }
  STRATA_HD static void load(const WeightRows& rows, int, PackedTile& tile) {
    alignas(64) Group raw[7];
    copy_qwords<6>(rows, 0, raw);
    for (int f = 0; f < kFeatures; ++f) raw[6][place(f)] = load32(rows.at[f] + 48) * 0x100000001ull;
    for (int q = 0; q < 4; ++q) digits(raw[q], q, 4, 5, tile);           // 32 bytes of five digits
    for (int q = 0; q < 2; ++q) digits(raw[4 + q], 20 + q, 2, 5, tile);  // 16 bytes of five
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {  // four bytes of four: digits 0 and 1, then 2 and 3, side by side
      const Bytes x = vector_of(raw[6], v), upper = splat64(0xffffffff00000000ull);
      const Bytes two = xor8(x, and8(xor8(x, times3(x)), upper));
      store_bytes(bytes_of(tile.raw[30]) + v * kBytes, digit(two));
      store_bytes(bytes_of(tile.raw[31]) + v * kBytes, digit(times3(times3(two))));
    }
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return vector_of(tile.raw[4 * b + g], v); });
  }
  STRATA_HD static void scales(const WeightRows& rows, int, PackedTile& tile) {
    same_scale(row_halves(rows, 52), tile);
  }
};

}  // namespace strata::STRATA_LEVEL
#endif
