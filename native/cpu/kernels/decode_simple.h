// Decoders of formats with blocks of 32 and 64 values.
#pragma once
#include "cpu/kernels/decode.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

// Blocks of two groups of raw nibbles: low ones are values 0 .. 15, high ones 16 .. 31.
template <class F>
STRATA_HD void split_nibbles(Group* raw, int blocks, PackedTile& tile, F&& code) {
  for (int b = 0; b < blocks; ++b)
    for (int q = 0; q < 2; ++q)
      each_vector([&](int at) {
        const Bytes x = load_bytes(bytes_of(raw[2 * b + q]) + at);
        store_bytes(bytes_of(tile.codes[4 * b + q]) + at, code(field8(x, 0, 15)));
        store_bytes(bytes_of(tile.codes[4 * b + 2 + q]) + at, code(field8(x, 4, 15)));
      });
}

template <int stride, int offset>
STRATA_HD void nibble_blocks(const WeightRows& rows, int blocks, PackedTile& tile) {
  alignas(64) Group raw[2 * kChunkBlocks];
  copy_blocks<stride, offset, 2>(rows, blocks, raw);
  split_nibbles(raw, blocks, tile, [](Bytes x) { return x; });
}

template <int stride, int offset>
STRATA_HD void table_blocks(const WeightRows& rows, int blocks, const int8_t* table, int bias, PackedTile& tile) {
  alignas(64) Group raw[2 * kChunkBlocks];
  copy_blocks<stride, offset, 2>(rows, blocks, raw);
  const Bytes values = add8(splat128(table), splat8(bias));
  split_nibbles(raw, blocks, tile, [&](Bytes x) { return shuffle16(values, x); });
}

// Nibbles at offset + 4 with a fifth bit in the 32 bits before them.
template <int stride, int offset>
STRATA_HD void five_bit_blocks(const WeightRows& rows, int blocks, PackedTile& tile) {
  nibble_blocks<stride, offset + 4>(rows, blocks, tile);
  alignas(64) Group high[kChunkBlocks / 2];  // of two blocks each
#if STRATA_SIMD == 512
  transpose_qwords<4>(
      [&](int f) {
        const __m512i low = pick<stride, offset, 4, 4>(rows.at[f], blocks);
        return _mm512_inserti32x4(low, _mm512_castsi512_si128(pick<stride, offset, 4, 4>(rows.at[f] + 4 * stride, blocks - 4)), 1);
      },
      high);
#else
  for (int f = 0; f < kFeatures; ++f)
    for (int b = 0; b < blocks; ++b)
      memcpy(bytes_of(high[b / 2]) + 8 * place(f) + b % 2 * 4, rows.at[f] + b * stride + offset, 4);
#endif
  for (int b = 0; b < blocks; ++b)
    each_vector([&](int at) {
      const Bytes bits = load_bytes(bytes_of(high[b / 2]) + at);
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        uint8_t* code = bytes_of(tile.codes[4 * b + g]) + at;
        store_bytes(code, add_where(load_bytes(code), bits_of(bits, b % 2 * 4 + g), splat8(16)));
      }
    });
}

template <> struct Decode<QuantType::Q4_0> : Plain {
  static constexpr int bias = 8;
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    nibble_blocks<18, 2>(rows, blocks, tile);
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<18, 0>(rows, blocks, tile.scale[0]);
  }
};

template <> struct Decode<QuantType::Q4_1> : Plain {
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    nibble_blocks<20, 4>(rows, blocks, tile);
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<20, 0>(rows, blocks, tile.scale[0]);
    block_halves<20, 2>(rows, blocks, tile.min);
  }
};

template <> struct Decode<QuantType::Q5_0> : Plain {
  static constexpr int bias = 16;
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    five_bit_blocks<22, 2>(rows, blocks, tile);
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<22, 0>(rows, blocks, tile.scale[0]);
  }
};

template <> struct Decode<QuantType::Q5_1> : Plain {
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    five_bit_blocks<24, 4>(rows, blocks, tile);
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<24, 0>(rows, blocks, tile.scale[0]);
    block_halves<24, 2>(rows, blocks, tile.min);
  }
};

// Codes of the whole signed byte: unsigned for AVX-512, whose products cannot saturate.
struct EightBit : Plain {
  static constexpr bool is_signed = STRATA_SIMD == 256;
};

template <> struct Decode<QuantType::Q8_0> : EightBit {
  static constexpr int bias = is_signed ? 0 : 128;
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    copy_blocks<34, 2, 4>(rows, blocks, tile.codes);
    if constexpr (bias != 0)
      for (int g = 0; g < kGroups * blocks; ++g)
        each_vector([&](int at) {
          uint8_t* code = bytes_of(tile.codes[g]) + at;
          store_bytes(code, xor8(load_bytes(code), splat8(bias)));
        });
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<34, 0>(rows, blocks, tile.scale[0]);
  }
};

template <> struct Decode<QuantType::IQ4_NL> : EightBit {
  static constexpr int bias = is_signed ? 0 : 127;
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    table_blocks<18, 2>(rows, blocks, kIq4Values, bias, tile);
  }
  STRATA_HD static void scales(const WeightRows& rows, int blocks, PackedTile& tile) {
    block_halves<18, 0>(rows, blocks, tile.scale[0]);
  }
};

template <> struct Decode<QuantType::MXFP4> : Plain {
  static constexpr int bias = 12;
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    table_blocks<17, 1>(rows, blocks, kE2m1Doubled, bias, tile);
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
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    alignas(64) Group raw[2 * kChunkBlocks];
    copy_blocks<36, 4, 4>(rows, blocks / 2, raw);
    const Bytes values = add8(splat128(kE2m1Doubled), splat8(bias));
    for (int h = 0; h < 2 * blocks; ++h)
      each_vector([&](int at) {
        const Bytes x = load_bytes(bytes_of(raw[h]) + at);
        store_bytes(bytes_of(tile.codes[2 * h]) + at, shuffle16(values, field8(x, 0, 15)));
        store_bytes(bytes_of(tile.codes[2 * h + 1]) + at, shuffle16(values, field8(x, 4, 15)));
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
  STRATA_HD static void codes(const WeightRows& rows, int blocks, PackedTile& tile) {
    alignas(64) Group raw[kChunkBlocks];
    copy_blocks<18, 2, 2>(rows, blocks / 2, raw);
    for (int b = 0; b < blocks; ++b)
      each_vector([&](int at) {
        const Bytes x = load_bytes(bytes_of(raw[b]) + at);
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) store_bytes(bytes_of(tile.codes[4 * b + g]) + at, field8(x, 2 * g, 3));
      });
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
