// Decoders of formats with blocks of 32 and 64 values.
#pragma once
#include "cpu/kernels/decode.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

// Nibble codes of block b: of two groups of raw bytes, low nibbles are values 0 .. 15, high ones 16 .. 31.
STRATA_HD Bytes nibble(const PackedTile& tile, int b, int g, int v) {
  return field8(vector_of(tile.raw[2 * b + g % 2], v), g / 2 * 4, 15);
}

template <int stride_, int offset_> struct NibbleBlocks : Plain {
  static constexpr int stride = stride_;
  STRATA_HD static void load(const WeightRows& rows, int blocks, PackedTile& tile) {
    copy_blocks<stride, offset_, 2>(rows, blocks, tile.raw);
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return nibble(tile, b, g, v); });
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<stride, 0>(rows, blocks, tile.scale[0]);
  }
};

// Blocks of a header (half numbers, then 32 fifth bits) and 16 bytes of nibbles, each as three groups of eight bytes: the
// header, padded, and the nibbles.
template <int stride_>
struct FiveBitBlocks : Plain {
  static constexpr int stride = stride_, header = stride - 16, fifth_at = header - 4;

#if STRATA_SIMD == 512
  static constexpr int source(int i) {  // of padded byte i
    const int at = i % 24;
    return i / 24 * stride + (at < 8 ? (at < header ? at : 0) : header + at - 8);
  }
  static constexpr int base(int part) {  // of the load that has padded bytes 64 part ..
    return part == 2 ? 8 * stride - 64 : source(64 * part);
  }
  template <int part>
  STRATA_HD static __m512i padded(const uint8_t* p, int blocks) {
    alignas(64) static constexpr auto index = [] {
      std::array<uint8_t, 64> x{};
      for (int i = 0; i < 64; ++i) x[static_cast<size_t>(i)] = static_cast<uint8_t>(source(64 * part + i) - base(part));
      return x;
    }();
    const int bytes = blocks * stride - base(part);
    const __mmask64 read = bytes >= 64 ? ~0ull : bytes <= 0 ? 0 : (1ull << bytes) - 1;
    const __m512i x = blocks == kChunkBlocks ? load_bytes(p + base(part)) : _mm512_maskz_loadu_epi8(read, p + base(part));
    return _mm512_permutexvar_epi8(load_bytes(index.data()), x);
  }
#endif

  STRATA_HD static void load(const WeightRows& rows, int blocks, PackedTile& tile) {
#if STRATA_SIMD == 512
    transpose_qwords<8>([&](int f) { return padded<0>(rows.at[f], blocks); }, tile.raw);
    transpose_qwords<8>([&](int f) { return padded<1>(rows.at[f], blocks); }, tile.raw + 8);
    transpose_qwords<8>([&](int f) { return padded<2>(rows.at[f], blocks); }, tile.raw + 16);
#else
    for (int f = 0; f < kFeatures; ++f)
      for (int b = 0; b < blocks; ++b) {
        const uint8_t* p = rows.at[f] + b * stride;
        tile.raw[3 * b][place(f)] = load64(p);
        tile.raw[3 * b + 1][place(f)] = load64(p + header), tile.raw[3 * b + 2][place(f)] = load64(p + header + 8);
      }
#endif
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) {
      const Mask fifth = bits_of(vector_of(tile.raw[3 * b], v), fifth_at + g);
      return add_where(field8(vector_of(tile.raw[3 * b + 1 + g % 2], v), g / 2 * 4, 15), fifth, splat8(16));
    });
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
#if STRATA_SIMD == 512
    for (int b = 0; b < blocks; ++b) {  // the headers' first words, feature by feature
      const __m512 x = _mm512_castsi512_ps(vector_of(tile.raw[3 * b], 0)), y = _mm512_castsi512_ps(vector_of(tile.raw[3 * b], 1));
      const __m512i both = _mm512_castps_si512(_mm512_shuffle_ps(x, y, 0x88));
      store_floats(tile.scale[0][b], _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both)));
      if (fifth_at == 4) store_floats(tile.min[b], _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16))));
    }
#else
    block_halves<stride, 0>(rows, blocks, tile.scale[0]);
    if (fifth_at == 4) block_halves<stride, 2>(rows, blocks, tile.min);
#endif
  }
};

// A format whose second half number is the minimum.
template <class Base> struct WithMin : Base {
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<Base::stride, 0>(rows, blocks, tile.scale[0]);
    block_halves<Base::stride, 2>(rows, blocks, tile.min);
  }
};

template <> struct Decode<QuantType::Q4_0> : NibbleBlocks<18, 2> {
  static constexpr int bias = 8;
};
template <> struct Decode<QuantType::Q4_1> : WithMin<NibbleBlocks<20, 4>> {};
template <> struct Decode<QuantType::Q5_0> : FiveBitBlocks<22> {
  static constexpr int bias = 16;
};
template <> struct Decode<QuantType::Q5_1> : FiveBitBlocks<24> {};

// Codes of the whole signed byte are unsigned for AVX-512, whose products cannot saturate.
template <> struct Decode<QuantType::Q8_0> : Plain {
  static constexpr bool is_signed = STRATA_SIMD == 256;
  static constexpr int bias = is_signed ? 0 : 128;
  STRATA_HD static void load(const WeightRows& rows, int blocks, PackedTile& tile) {
    copy_blocks<34, 2, 4>(rows, blocks, tile.raw);
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) {
      const Bytes x = vector_of(tile.raw[4 * b + g], v);
      return is_signed ? x : xor8(x, splat8(128));
    });
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<34, 0>(rows, blocks, tile.scale[0]);
  }
};

template <> struct Decode<QuantType::IQ4_NL> : NibbleBlocks<18, 2> {
  static constexpr bool is_signed = STRATA_SIMD == 256;
  static constexpr int bias = is_signed ? 0 : 127;
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    const Bytes values = add8(splat128(kIq4Values), splat8(bias));
    each_code(w, [&](int g, int v) { return shuffle16(values, nibble(tile, b, g, v)); });
  }
};

template <> struct Decode<QuantType::MXFP4> : NibbleBlocks<17, 1> {
  static constexpr int bias = 12;
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    const Bytes values = add8(splat128(kE2m1Doubled), splat8(bias));
    each_code(w, [&](int g, int v) { return shuffle16(values, nibble(tile, b, g, v)); });
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    Columns s;
    s.turn_bytes([&](int f) {
#if STRATA_SIMD == 512
      return _mm512_castsi512_si128(pick<17, 0, 1, 8>(rows.at[f], blocks));
#else
      uint64_t x = 0;
      for (int b = 0; b < blocks; ++b) x |= static_cast<uint64_t>(rows.at[f][17 * b]) << 8 * b;
      return two64(x, 0);
#endif
    });
#pragma GCC unroll 8
    for (int b = 0; b < kChunkBlocks; ++b) {  // e8m0_halved: the larger of its two cases
      const Ints e = s.ints(b), normal = left_int(sub(e, splat_int(1)), 23), tiny = left_int(add(e, splat_int(1)), 21);
      store_floats(tile.scale[0][b], bits_floats(max_int(normal, tiny)));
    }
  }
};

template <> struct Decode<QuantType::NVFP4> : Plain {
  static constexpr int bias = 12;
  STRATA_HD static void load(const WeightRows& rows, int blocks, PackedTile& tile) {
    copy_blocks<36, 4, 4>(rows, blocks / 2, tile.raw);
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    const Bytes values = add8(splat128(kE2m1Doubled), splat8(bias));
    each_code(w, [&](int g, int v) {
      return shuffle16(values, field8(vector_of(tile.raw[2 * b + g / 2], v), g % 2 * 4, 15));
    });
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    Columns s;
    s.turn_bytes([&](int f) {
      const auto four = [&](int i) { return i < blocks / 2 ? static_cast<int>(load32(rows.at[f] + 36 * i)) : 0; };
      return _mm_setr_epi32(four(0), four(1), four(2), four(3));
    });
#pragma GCC unroll 16
    for (int h = 0; h < 2 * kChunkBlocks; ++h) {  // ue4m3_halved: the smaller of its two cases, or 0
      const Ints code = s.ints(h), shifted = left_int(and_int(code, splat_int(127)), 20);
      const Floats normal = bits_floats(add(shifted, splat_int(119 << 23)));
      const Floats tiny = add(bits_floats(add(shifted, splat_int(120 << 23))), splat(-0.0078125f));
      store_floats(tile.scale[h % 2][h / 2], zero_where(min_float(normal, tiny), code, splat_int(127)));
    }
  }
};

template <> struct Decode<QuantType::Q2_0> : Plain {
  static constexpr int bias = 1;
  static constexpr bool strided = true;  // a byte holds four neighbours
  STRATA_HD static void load(const WeightRows& rows, int blocks, PackedTile& tile) {
    copy_blocks<18, 2, 2>(rows, blocks / 2, tile.raw);
  }
  STRATA_HD static void block(const PackedTile& tile, int b, BlockCodes& w) {
    each_code(w, [&](int g, int v) { return field8(vector_of(tile.raw[b], v), 2 * g, 3); });
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    alignas(64) uint16_t half[kChunkBlocks / 2][kFeatures];
    for (int f = 0; f < kFeatures; ++f)
      for (int i = 0; i < blocks / 2; ++i) memcpy(&half[i][f], rows.at[f] + 18 * i, 2);
    for (int b = 0; b < blocks; ++b)
      store_floats(tile.scale[0][b], floats_half(load128(half[b / 2]), load128(half[b / 2] + 8)));
  }
};

}  // namespace strata::STRATA_LEVEL
#endif
