// Packed weights of the formats that packed.cuh does not list first; it includes this file.
//
//   type     planes (bytes per 32-block)
//   Q8_0     codes (32) | f16 d
//   Q4_0     nibbles (16): byte j holds j, j+16 | f16 d;  Q4_1: f16 d, m
//   Q5_0     nibbles (16) | fifth bits (4) | f16 d;  Q5_1: f16 d, m
//   Q5_K     as Q4_K | fifth bits (4)
//   Q2_K     codes (8) as Q2_0 | scales and minimums (2) | f16 d, dmin (4 per 8 blocks)
//   Q3_K     codes (8) as Q2_0 | third bits (4) | the 12 B of scales per 8 blocks | f16 d
//   TQ2_0    codes (8) as Q2_0 | f16 d per 8 blocks
//   IQ4_NL   nibbles in order (16) | f16 d;  MXFP4: E8M0 scale (1)
//   IQ4_XS   nibbles in order (16) | low bits of scales (4 per 8 blocks) | high bits of scales, f16 d (4 per 8 blocks)
//   IQ2_XXS  grid indices, signs and scale (8) | f16 d per 8 blocks
//   IQ2_XS   four words of grid index and signs (8) | scales (1) | f16 d per 8 blocks
//   IQ3_S    grid indices (8) | signs (4) | ninth bits (1) | scales, f16 d (6 per 8 blocks)
#pragma once

namespace strata {

__device__ __forceinline__ uint32_t load_1(const uint8_t* p) { return __ldg(p); }
__device__ __forceinline__ float low_half(uint32_t v) { return half_float(static_cast<uint16_t>(v)); }
__device__ __forceinline__ float high_half(uint32_t v) { return half_float(static_cast<uint16_t>(v >> 16)); }

// Bit i of four to the lowest bit of byte i.
__device__ __forceinline__ uint32_t spread_bits(uint32_t four) { return four * 0x00204081u & 0x01010101u; }

// Values 4 i .. 4 i + 3 of nibbles and of pairs of bits, a byte each.
__device__ __forceinline__ uint32_t nibbles_of(const uint4& v, int i) {
  const uint32_t word[4] = {v.x, v.y, v.z, v.w};
  return word[i & 3] >> 4 * (i / 4) & 0x0f0f0f0fu;
}
__device__ __forceinline__ uint32_t pairs_of(const uint2& v, int i) { return (i < 4 ? v.x : v.y) >> 2 * (i & 3) & 0x03030303u; }

// Where block b of a row lies, in blocks of the matrix.
struct Place {
  size_t cells, at;
  __device__ __forceinline__ Place(int n, int blocks, int row, int b)
      : cells(static_cast<size_t>(n) * blocks), at(static_cast<uint32_t>(row * blocks + b)) {}
};

// Formats without a grid.
struct NoTable {
  static constexpr int kTableWords = 0;
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t*) {}
};

template <> struct Packed<QuantType::Q8_0> : NoTable {
  static constexpr int kOffset = 0;
  struct Raw {
    uint4 low, high;
    uint32_t d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    return {load_16(w + p.at * 32), load_16(w + p.at * 32 + 16), load_2(w + p.cells * 32 + p.at * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
    code[0] = r.low.x, code[1] = r.low.y, code[2] = r.low.z, code[3] = r.low.w;
    code[4] = r.high.x, code[5] = r.high.y, code[6] = r.high.z, code[7] = r.high.w;
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) { return {low_half(r.d), 0.0f, 0.0f, 1, 1}; }
};

// Nibbles, with or without fifth bits and a minimum.
template <bool Fifth, bool Min> struct LegacyNibbles : NoTable {
  static constexpr int kOffset = Min ? 0 : Fifth ? 16 : 8;
  struct Raw {
    uint4 nibbles;
    uint32_t fifth, d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    const uint8_t *bits = w + p.cells * 16, *d = bits + (Fifth ? p.cells * 4 : 0);
    return {load_16(w + p.at * 16), Fifth ? load_4(bits + p.at * 4) : 0u, Min ? load_4(d + p.at * 4) : load_2(d + p.at * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      code[i] = nibbles_of(r.nibbles, i);
      if constexpr (Fifth) code[i] |= spread_bits(r.fifth >> 4 * i & 15u) << 4;
    }
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) { return {low_half(r.d), 0.0f, Min ? high_half(r.d) : 0.0f, 1, 1}; }
};

template <> struct Packed<QuantType::Q4_0> : LegacyNibbles<false, false> {};
template <> struct Packed<QuantType::Q4_1> : LegacyNibbles<false, true> {};
template <> struct Packed<QuantType::Q5_0> : LegacyNibbles<true, false> {};
template <> struct Packed<QuantType::Q5_1> : LegacyNibbles<true, true> {};

template <> struct Packed<QuantType::Q5_K> : NoTable {
  static constexpr int kOffset = 0;
  using Four = Packed<QuantType::Q4_K>;
  struct Raw {
    Four::Raw four;
    uint32_t fifth;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    return {Four::load(w, n, blocks, row, b), load_4(w + p.cells * 18 + p.at * 4)};
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = nibbles_of(r.four.nibbles, i) | spread_bits(r.fifth >> 4 * i & 15u) << 4;
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) { return Four::scales(r.four); }
};

template <> struct Packed<QuantType::Q2_K> : NoTable {
  static constexpr int kOffset = 0;
  struct Raw {
    uint2 codes;
    uint32_t scales, d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    return {load_8(w + p.at * 8), load_2(w + p.cells * 8 + p.at * 2), load_4(w + p.cells * 10 + p.at / 8 * 4)};
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = pairs_of(r.codes, i);
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    const int s = static_cast<int>(r.scales);
    return {low_half(r.d), 0.0f, -high_half(r.d), s & 15, s >> 8 & 15, s >> 4 & 15, s >> 12};
  }
};

template <> struct Packed<QuantType::Q3_K> : NoTable {
  static constexpr int kOffset = 4;
  struct Raw {
    uint2 codes;
    uint32_t third, scale[3], d;
    int j;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    const uint8_t* s = w + p.cells * 12 + p.at / 8 * 12;
    return {load_8(w + p.at * 8), load_4(w + p.cells * 8 + p.at * 4), {load_4(s), load_4(s + 4), load_4(s + 8)},
            load_2(w + p.cells * 12 + p.cells / 8 * 12 + p.at / 8 * 2), b & 7};
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = pairs_of(r.codes, i) | spread_bits(r.third >> 4 * i & 15u) << 2;
  }
  // Scale s of 16: low nibble of byte s or high nibble of byte s - 8, and two of the bits of byte 8 + s % 4.
  static __device__ __forceinline__ int scale(const Raw& r, int s) {
    const uint32_t low = ((s & 4) ? r.scale[1] : r.scale[0]) >> (8 * (s & 3) + 4 * (s >> 3)) & 15u;
    return static_cast<int>(low | (r.scale[2] >> (8 * (s & 3) + 2 * (s >> 2)) & 3u) << 4) - 32;
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    return {low_half(r.d), 0.0f, 0.0f, scale(r, 2 * r.j), scale(r, 2 * r.j + 1)};
  }
};

template <> struct Packed<QuantType::TQ2_0> : NoTable {
  static constexpr int kOffset = 1;
  struct Raw {
    uint2 codes;
    uint32_t d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    return {load_8(w + p.at * 8), load_2(w + p.cells * 8 + p.at / 8 * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = pairs_of(r.codes, i);
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) { return {low_half(r.d), 0.0f, 0.0f, 1, 1}; }
};

// Four codes of the IQ4 table from 16 bits of nibbles, by byte permutes.
__device__ __forceinline__ uint32_t four_iq4(uint32_t nibbles) {
  const uint32_t index = nibbles & 0x7777u;
  const uint32_t low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, index), high = __byte_perm(0x26190d01u, 0x71594535u, index);
  return __byte_perm(low, high, 0x3210u + (nibbles >> 1 & 0x4444u));
}

template <> struct Packed<QuantType::IQ4_NL> : NoTable {
  static constexpr int kOffset = 0;
  struct Raw {
    uint4 nibbles;
    uint32_t d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    return {load_16(w + p.at * 16), load_2(w + p.cells * 16 + p.at * 2)};
  }
  static __device__ __forceinline__ void codes(const uint4& nibbles, uint32_t* code) {
    const uint32_t v[4] = {nibbles.x, nibbles.y, nibbles.z, nibbles.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = four_iq4(v[i / 2] >> 16 * (i & 1) & 0xffffu);
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
    codes(r.nibbles, code);
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) { return {low_half(r.d), 0.0f, 0.0f, 1, 1}; }
};

template <> struct Packed<QuantType::IQ4_XS> : NoTable {
  static constexpr int kOffset = 0;
  struct Raw {
    uint4 nibbles;
    uint32_t low, high_d;
    int j;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    const uint8_t* low = w + p.cells * 16;
    return {load_16(w + p.at * 16), load_4(low + p.at / 8 * 4), load_4(low + p.cells / 8 * 4 + p.at / 8 * 4), b & 7};
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
    Packed<QuantType::IQ4_NL>::codes(r.nibbles, code);
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    const uint32_t scale = (r.low >> 4 * r.j & 15u) | (r.high_d >> 2 * r.j & 3u) << 4;
    return {high_half(r.high_d) * static_cast<float>(static_cast<int>(scale) - 32), 0.0f, 0.0f, 1, 1};
  }
};

template <> struct Packed<QuantType::MXFP4> : NoTable {
  static constexpr int kOffset = 0;
  struct Raw {
    uint4 nibbles;
    uint32_t scale;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    return {load_16(w + p.at * 16), load_1(w + p.cells * 16 + p.at)};
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
    const uint32_t v[4] = {r.nibbles.x, r.nibbles.y, r.nibbles.z, r.nibbles.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = Packed<QuantType::NVFP4>::four(v[i / 2] >> 16 * (i & 1) & 0xffffu);
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    return {e8m0_halved(static_cast<uint8_t>(r.scale)), 0.0f, 0.0f, 1, 1};
  }
};

// Eight values of grid entry e of `entries` (words e and entries + e), signs by seven bits and their parity.
template <int Copies>
__device__ __forceinline__ void signed_entry(const uint32_t* table, int entries, uint32_t e, uint32_t seven, uint32_t* code) {
  const uint32_t parity = static_cast<uint32_t>(__popc(seven)) & 1u;
  code[0] = negate_bytes(table[e * Copies], seven);
  code[1] = negate_bytes(table[(entries + e) * Copies], seven >> 4 | parity << 3);
}

template <int Copies> __device__ __forceinline__ void fill_entries(uint32_t* table, const uint64_t* grid, int entries) {
  for (int i = threadIdx.x; i < entries * Copies; i += blockDim.x) {
    table[i] = static_cast<uint32_t>(grid[i / Copies]);
    table[entries * Copies + i] = static_cast<uint32_t>(grid[i / Copies] >> 32);
  }
}

template <> struct Packed<QuantType::IQ2_XXS> {
  static constexpr int kTableWords = 512, kOffset = 0;
  struct Raw {
    uint2 index_signs;
    uint32_t d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    return {load_8(w + p.at * 8), load_2(w + p.cells * 8 + p.at / 8 * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t* table) { fill_entries<Copies>(table, kGridIq2Xxs, 256); }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t* table, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      signed_entry<Copies>(table, 256, r.index_signs.x >> 8 * i & 255u, r.index_signs.y >> 7 * i & 127u, code + 2 * i);
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    const float d = low_half(r.d) * 0.125f;
    return {d * static_cast<float>(2 * (r.index_signs.y >> 28) + 1), 0.0f, 0.0f, 1, 1};
  }
};

template <> struct Packed<QuantType::IQ2_XS> {
  static constexpr int kTableWords = 1024, kOffset = 0;
  struct Raw {
    uint2 words;
    uint32_t scale, d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    return {load_8(w + p.at * 8), load_1(w + p.cells * 8 + p.at), load_2(w + p.cells * 9 + p.at / 8 * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t* table) { fill_entries<Copies>(table, kGridIq2Xs, 512); }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t* table, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = (i < 2 ? r.words.x : r.words.y) >> 16 * (i & 1) & 0xffffu;
      signed_entry<Copies>(table, 512, word & 511u, word >> 9, code + 2 * i);
    }
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    return {low_half(r.d) * 0.125f, 0.0f, 0.0f, static_cast<int>(2 * (r.scale & 15u) + 1), static_cast<int>(2 * (r.scale >> 4) + 1)};
  }
};

template <> struct Packed<QuantType::IQ3_S> {
  static constexpr int kTableWords = 512, kOffset = 0;
  struct Raw {
    uint2 index;
    uint32_t signs, high, scales, d;
    int j;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const Place p(n, blocks, row, b);
    const uint8_t* tail = w + p.cells * 13 + p.at / 8 * 6;
    return {load_8(w + p.at * 8), load_4(w + p.cells * 8 + p.at * 4), load_1(w + p.cells * 12 + p.at), load_2(tail + (b & 4) / 2),
            load_2(tail + 4), b & 3};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t* table) {
    for (int i = threadIdx.x; i < 512 * Copies; i += blockDim.x) table[i] = kGridIq3S[i / Copies];
  }
  template <int Copies> static __device__ __forceinline__ void decode(const Raw& r, const uint32_t* table, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t e = ((i < 4 ? r.index.x : r.index.y) >> 8 * (i & 3) & 255u) | (r.high >> i & 1u) << 8;
      code[i] = negate_bytes(table[e * Copies], r.signs >> 4 * i & 15u);
    }
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    return {low_half(r.d) * static_cast<float>(2 * (r.scales >> 4 * r.j & 15u) + 1), 0.0f, 0.0f, 1, 1};
  }
};

}  // namespace strata
