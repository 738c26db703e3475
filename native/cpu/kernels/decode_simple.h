// Decoders of formats with blocks of 32 and 64 values.
#pragma once
#include "cpu/kernels/decode.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

// File blocks of `header` bytes (scales, fifth bits) and `width` times eight bytes of codes, `count` of them in a chunk.
// Each becomes 1 + width groups of eight bytes: the header, padded, then the codes; one load and one shuffle give eight
// groups of a row. Crossing cache lines is what such blocks cost, so that loads are few.
template <int header_, int width, int count = kChunkBlocks> struct PaddedBlocks : Plain {
  static constexpr int header = header_, stride = header + 8 * width, groups = 1 + width;
  static_assert(count * groups <= sizeof(PackedTile::raw) / sizeof(Group));

#if STRATA_SIMD == 512
  static constexpr int source(int i) {  // of padded byte i; padding repeats a header byte
    const int at = i % (8 * groups);
    return i / (8 * groups) * stride + (at < 8 ? (at < header ? at : 0) : header + at - 8);
  }
  static constexpr int base(int part) {  // of the load for padded bytes 64 part ..
    return source(64 * part) < count * stride - 64 ? source(64 * part) : count * stride - 64;
  }
  template <int part>
  alignas(64) static constexpr std::array<uint8_t, 64> kIndex = [] {
    std::array<uint8_t, 64> x{};
    for (int i = 0; i < 64; ++i) {
      const int at = source(64 * part + i) - base(part);
      x[static_cast<size_t>(i)] = static_cast<uint8_t>(at < 0 || at > 63 ? 0 : at);
    }
    return x;
  }();
  // Groups 8 part .. of all rows from their first `bytes`.
  template <int part> STRATA_HD static void load_parts(const WeightRows& rows, int bytes, PackedTile& tile) {
    const Bytes index = load_bytes(kIndex<part>.data());
    const int left = bytes - base(part);
    if (left >= 64) {
      transpose_qwords<8>([&](int f) { return _mm512_permutexvar_epi8(index, load_bytes(rows.at[f] + base(part))); },
                          tile.raw + 8 * part);
    } else if (left > 0) {
      const __mmask64 read = (1ull << left) - 1;
      transpose_qwords<8>(
          [&](int f) { return _mm512_permutexvar_epi8(index, _mm512_maskz_loadu_epi8(read, rows.at[f] + base(part))); },
          tile.raw + 8 * part);
    }
    if constexpr (8 * (part + 1) < count * groups) load_parts<part + 1>(rows, bytes, tile);
  }
#endif

  STRATA_HD static void load(const WeightRows& rows, int blocks, PackedTile& tile) {
    const int present = blocks * count / kChunkBlocks;
#if STRATA_SIMD == 512
    load_parts<0>(rows, present * stride, tile);
#else
    for (int b = 0; b < present; ++b) {
      Group* to = tile.raw + groups * b;
      transpose_one(rows, b * stride, to[0]);
#pragma GCC unroll 2
      for (int q = 0; q < width; q += 2) transpose_pairs(rows, b * stride + header + 8 * q, to[1 + q], to[2 + q]);
    }
#endif
  }

  // The first four bytes of file block b, feature by feature.
  STRATA_HD static Ints header_words(const PackedTile& tile, int b) { return low_words(tile.raw[groups * b]); }
  // Codes: group q of file block b, vector v.
  STRATA_HD static Bytes raw_codes(const PackedTile& tile, int b, int q, int v) {
    return vector_of(tile.raw[groups * b + 1 + q], v);
  }
};

// The half number that each block starts with; with a minimum, that is the next.
template <class Format_, bool with_min> STRATA_HD void half_headers(int blocks, PackedTile& tile) {
  for (int b = 0; b < blocks; ++b) {
    const Ints words = Format_::header_words(tile, b);
    store_floats(tile.scale[0][b], low_halves(words));
    if (with_min) store_floats(tile.min[b], low_halves(right_int(words, 16)));
  }
}

// Low nibbles are values 0 .. 15, high ones 16 .. 31.
template <int header, bool with_min = false> struct NibbleBlocks : PaddedBlocks<header, 2> {
  STRATA_HD static Bytes nibble(const PackedTile& tile, int b, int g, int v) {
    return field8(NibbleBlocks::raw_codes(tile, b, g % 2, v), g / 2 * 4, 15);
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return nibble(tile, b, g, v); });
  }
  STRATA_HD static void scales(const WeightRows&, int blocks, PackedTile& tile) {
    half_headers<NibbleBlocks, with_min>(blocks, tile);
  }
};

// Nibbles that index a table of 16 values, stored + bias.
template <int header> struct TableBlocks : NibbleBlocks<header> {
  STRATA_HD static void table_block(const PackedTile& tile, int b, const int8_t* table, int bias, BlockCodes& w) {
    const Bytes values = add8(splat128(table), splat8(bias));
    each_code(w, [&](int g, int v) { return shuffle16(values, TableBlocks::nibble(tile, b, g, v)); });
  }
};

// With a fifth bit in the last 32 bits of the header.
template <int header, bool with_min = false> struct FiveBitBlocks : NibbleBlocks<header, with_min> {
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) {
      const Mask fifth = bits_of(vector_of(tile.raw[3 * b], v), header - 4 + g);
      return add_where(FiveBitBlocks::nibble(tile, b, g, v), fifth, splat8(16));
    });
  }
};

template <> struct Decode<QuantType::Q4_0> : NibbleBlocks<2> {
  static constexpr int bias = 8, top = 15;
};
template <> struct Decode<QuantType::Q4_1> : NibbleBlocks<4, true> {
  static constexpr int top = 15;
};
template <> struct Decode<QuantType::Q5_0> : FiveBitBlocks<6> {
  static constexpr int bias = 16, top = 31;
};
template <> struct Decode<QuantType::Q5_1> : FiveBitBlocks<8, true> {
  static constexpr int top = 31;
};

// Codes of the whole signed byte are unsigned for AVX-512, whose products cannot saturate.
template <> struct Decode<QuantType::Q8_0> : PaddedBlocks<2, 4> {
  static constexpr bool is_signed = !STRATA_VNNI;
  static constexpr int bias = is_signed ? 0 : 128, top = is_signed ? 127 : 255;
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) {
      const Bytes x = raw_codes(tile, b, g, v);
      return is_signed ? x : xor8(x, splat8(128));
    });
  }
  STRATA_HD static void scales(const WeightRows&, int blocks, PackedTile& tile) {
    half_headers<PaddedBlocks, false>(blocks, tile);
  }
};

template <> struct Decode<QuantType::IQ4_NL> : TableBlocks<2> {
  static constexpr bool is_signed = !STRATA_VNNI;
  static constexpr int bias = is_signed ? 0 : 127, top = is_signed ? 127 : 240;
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    table_block(tile, b, kIq4Values, bias, w);
  }
};

template <> struct Decode<QuantType::MXFP4> : TableBlocks<1> {
  static constexpr int bias = 12, top = 24;
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    table_block(tile, b, kE2m1Doubled, bias, w);
  }
  STRATA_HD static void scales(const WeightRows&, int blocks, PackedTile& tile) {
    for (int b = 0; b < blocks; ++b) {  // e8m0_halved: the larger of its two cases
      const Ints e = and_int(header_words(tile, b), splat_int(255));
      const Ints normal = left_int(sub(e, splat_int(1)), 23), tiny = left_int(add(e, splat_int(1)), 21);
      store_floats(tile.scale[0][b], bits_floats(max_int(normal, tiny)));
    }
  }
};

template <> struct Decode<QuantType::NVFP4> : PaddedBlocks<4, 4, kChunkBlocks / 2> {
  static constexpr int bias = 12, top = 24;
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    const Bytes values = add8(splat128(kE2m1Doubled), splat8(bias));
    each_code(w, [&](int g, int v) {
      return shuffle16(values, field8(raw_codes(tile, b / 2, b % 2 * 2 + g / 2, v), g % 2 * 4, 15));
    });
  }
  STRATA_HD static void scales(const WeightRows&, int blocks, PackedTile& tile) {
    for (int b = 0; b < blocks; ++b) {
      const Ints words = header_words(tile, b / 2);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h)
        store_floats(tile.scale[h][b], scale(and_int(right_int(words, b % 2 * 16 + 8 * h), splat_int(255))));
    }
  }
  STRATA_HD static Floats scale(Ints code) {  // ue4m3_halved: the smaller of its two cases, or 0
    const Ints shifted = left_int(and_int(code, splat_int(127)), 20);
    const Floats normal = bits_floats(add(shifted, splat_int(119 << 23)));
    const Floats tiny = add(bits_floats(add(shifted, splat_int(120 << 23))), splat(-0.0078125f));
    return zero_where(min_float(normal, tiny), code, splat_int(127));
  }
};

template <> struct Decode<QuantType::Q2_0> : PaddedBlocks<2, 2, kChunkBlocks / 2> {
  static constexpr int bias = 1, top = 3;
  static constexpr bool strided = true;  // a byte holds four neighbours
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return field8(raw_codes(tile, b / 2, b % 2, v), 2 * g, 3); });
  }
  STRATA_HD static void scales(const WeightRows&, int blocks, PackedTile& tile) {
    for (int b = 0; b < blocks; ++b) store_floats(tile.scale[0][b], low_halves(header_words(tile, b / 2)));
  }
};

}  // namespace strata::STRATA_LEVEL
#endif
