// Packed weights: the GGUF's bits re-laid in planes, without loss and without growth, so that one 32-block's bytes lie
// together, aligned. A matrix [n, k] is the planes one after another, each [n][blocks per row][bytes per block].
//
//   type     planes (bytes per 32-block)
//   IQ3_XXS  grid indices (8) | signs and scale (4) | f16 d (2 per 8 blocks)
//   Q2_0     codes (8): byte j of a word holds values j, j+4, j+8, j+12 | f16 d (2 per 2 blocks)
//   Q6_K     low nibbles (16): byte j holds j, j+16 | high bits (8): byte j holds j, j+8, j+16, j+24 | scales (2) | f16 d
//   Q4_K     nibbles (16): byte j holds j, j+16 | the 12 B of 6-bit scales and minimums per 8 blocks | f16 d, dmin
//   IQ2_S    low grid indices and signs (8) | high index bits, scales (2) | f16 d
//   NVFP4    nibbles in order (16) | UE4M3 scales (2)
//
// Packed<T>::load takes a block's raw words; decode turns them into eight words of four codes, in K order.
#pragma once

#include "device.cuh"
#include "strata/quants.h"

namespace strata {

// What a block's chain step needs beside the codes. One scale per 32: w0. Float scales per 16: w0, w1. Integer
// sub-scales per 16: w0, s0, s1. One minimum: m. Two integer minimums: m their float factor, m0, m1.
struct Scales {
  float w0, w1, m;
  int s0, s1;
  int m0 = 0, m1 = 0;
};

// Where a row of a tile lies: in planes of its matrix.
struct PackedRow {
  const uint8_t* planes;
  int row;
};

enum class Steps { one, halves, scale16 };

template <QuantType T> constexpr Steps kSteps =
    Layout<T>::scale16 ? Steps::scale16 : Layout<T>::halves ? Steps::halves : Steps::one;
template <QuantType T> constexpr bool kHasMin = Layout<T>::has_min;

// The contract's chain step from the products of the two halves and the activations' sums over them.
template <QuantType T>
__device__ __forceinline__ float block_step(const Scales& w, int sum0, int sum1, float d_a, int low, int high, float y) {
  if constexpr (kSteps<T> == Steps::scale16) {
    y = dot_step(sum0, w.w0, d_a, y);
    y = dot_step(sum1, w.w1, d_a, y);
  } else if constexpr (kSteps<T> == Steps::halves) {
    y = dot_step(w.s0 * sum0 + w.s1 * sum1, w.w0, d_a, y);
  } else {
    y = dot_step(sum0 + sum1, w.w0, d_a, y);
  }
  if constexpr (kHasMin<T> && kSteps<T> == Steps::halves)
    y = dot_step(w.m0 * low + w.m1 * high, w.m, d_a, y);
  else if constexpr (kHasMin<T>)
    y = min_step(w.m, low + high, d_a, y);
  return y;
}

__device__ __forceinline__ float load_f16(const uint8_t* p) {
  return half_float(__ldg(reinterpret_cast<const unsigned short*>(p)));
}
__device__ __forceinline__ uint4 load_16(const uint8_t* p) { return __ldg(reinterpret_cast<const uint4*>(p)); }
__device__ __forceinline__ uint2 load_8(const uint8_t* p) { return __ldg(reinterpret_cast<const uint2*>(p)); }
__device__ __forceinline__ uint32_t load_4(const uint8_t* p) { return __ldg(reinterpret_cast<const uint32_t*>(p)); }
__device__ __forceinline__ uint32_t load_2(const uint8_t* p) {
  return __ldg(reinterpret_cast<const unsigned short*>(p));
}

// Negates byte i of v where bit i of `bits` is set; bits 4 to 6 do not matter, higher ones must be clear. No byte of v is
// 0, so no carry leaves a byte.
__device__ __forceinline__ uint32_t negate_bytes(uint32_t v, uint32_t bits) {
  const uint32_t signs = bits * 0x10204080u & 0x80808080u;  // bit i to the top of byte i
  const uint32_t mask = spread_signs(signs);                  // and over all of it
  return (v ^ mask) + (mask & 0x01010101u);
}

// The parity of each of four fields of 7 bits, in the field's lowest bit.
__device__ __forceinline__ uint32_t parity7(uint32_t s) {
  const uint32_t pairs = s ^ s >> 1;
  return pairs ^ pairs >> 2 ^ pairs >> 4 ^ s >> 6;
}

// Grid tables live in shared memory, `Copies` of each word side by side, so that lanes rarely meet in a bank: `table`
// points at this lane's copy. A code is stored plus kOffset where the format subtracts one; `centre` takes it off.
//
// The general form reads the file's own blocks: right for every format, and slow (its codes go through local memory).
template <QuantType T> struct Packed {
  static constexpr int kTableWords = 0;
  static constexpr int kOffset = 0;
  struct Raw {
    const uint8_t* block;
    int i;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int, int blocks, int row, int b) {
    constexpr int per = Layout<T>::values / kBlock;
    return {w + (static_cast<size_t>(row) * (blocks / per) + b / per) * Layout<T>::bytes, b % per};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t*) {}
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
    Block32 block;
    Format<T>::block32(r.block, r.i, block);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      code[i] = static_cast<uint8_t>(block.code[4 * i]) | static_cast<uint8_t>(block.code[4 * i + 1]) << 8 |
                static_cast<uint8_t>(block.code[4 * i + 2]) << 16 |
                static_cast<uint32_t>(static_cast<uint8_t>(block.code[4 * i + 3])) << 24;
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    Block32 block;
    Format<T>::block32(r.block, r.i, block);
    if constexpr (Layout<T>::scale16)
      return {block.d[0] * static_cast<float>(block.scale[0]), block.d[1] * static_cast<float>(block.scale[1]), 0.0f, 1, 1};
    else if constexpr (Layout<T>::halves)
      return {block.d[0], 0.0f, block.dmin, block.scale[0], block.scale[1], block.min[0], block.min[1]};
    else
      return {block.d[0] * static_cast<float>(block.scale[0]), 0.0f, block.dmin * static_cast<float>(block.min[0]), 1, 1};
  }
};

template <> struct Packed<QuantType::IQ3_XXS> {
  static constexpr int kTableWords = 256;  // grid entry e
  static constexpr int kOffset = 0;
  struct Raw {
    uint2 index;
    uint32_t signs;
    uint32_t d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const size_t cells = static_cast<size_t>(n) * blocks;
    const uint32_t at = static_cast<uint32_t>(row * blocks + b);  // a matrix has fewer than 2^31 blocks
    return {load_8(w + static_cast<size_t>(at) * 8), load_4(w + cells * 8 + static_cast<size_t>(at) * 4), load_2(w + cells * 12 + static_cast<size_t>(at / 8) * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t* table) {
    for (int i = threadIdx.x; i < 256 * Copies; i += blockDim.x) table[i] = kGridIq3Xxs[i / Copies];
  }
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t* table, uint32_t* code) {
    const uint32_t parity = parity7(r.signs);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t entry = table[(((i < 4 ? r.index.x : r.index.y) >> 8 * (i & 3)) & 255u) * Copies];
      const uint32_t seven = r.signs >> 7 * (i / 2) & 127u;
      code[i] = negate_bytes(entry, (i & 1) ? seven >> 4 | (parity >> 7 * (i / 2) & 1u) << 3 : seven);
    }
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    const float d = half_float(static_cast<uint16_t>(r.d)) * 0.25f;
    return {d * static_cast<float>(2 * (r.signs >> 28) + 1), 0.0f, 0.0f, 1, 1};
  }
};

template <> struct Packed<QuantType::Q2_0> {
  static constexpr int kTableWords = 0;
  static constexpr int kOffset = 1;
  struct Raw {
    uint2 codes;
    uint32_t d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const size_t cells = static_cast<size_t>(n) * blocks;
    const uint32_t at = static_cast<uint32_t>(row * blocks + b);  // a matrix has fewer than 2^31 blocks
    return {load_8(w + static_cast<size_t>(at) * 8), load_2(w + cells * 8 + static_cast<size_t>(at / 2) * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t*) {}
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      code[i] = (i < 4 ? r.codes.x : r.codes.y) >> 2 * (i & 3) & 0x03030303u;
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    return {half_float(static_cast<uint16_t>(r.d)), 0.0f, 0.0f, 1, 1};
  }
};

template <> struct Packed<QuantType::Q6_K> {
  static constexpr int kTableWords = 0;
  static constexpr int kOffset = 32;
  struct Raw {
    uint4 low;
    uint2 high;
    uint32_t scale, d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const size_t cells = static_cast<size_t>(n) * blocks;
    const uint32_t at = static_cast<uint32_t>(row * blocks + b);  // a matrix has fewer than 2^31 blocks
    return {load_16(w + static_cast<size_t>(at) * 16), load_8(w + cells * 16 + static_cast<size_t>(at) * 8), load_2(w + cells * 24 + static_cast<size_t>(at) * 2),
            load_2(w + cells * 26 + static_cast<size_t>(at / 8) * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t*) {}
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
    const uint32_t low[4] = {r.low.x, r.low.y, r.low.z, r.low.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t nibble = low[i & 3] >> 4 * (i / 4) & 0x0f0f0f0fu;
      const uint32_t high = ((i & 1) ? r.high.y : r.high.x) >> 2 * (i / 2) & 0x03030303u;
      code[i] = nibble | high << 4;
    }
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    return {half_float(static_cast<uint16_t>(r.d)), 0.0f, 0.0f, static_cast<int8_t>(r.scale),
            static_cast<int8_t>(r.scale >> 8)};
  }
};

template <> struct Packed<QuantType::Q4_K> {
  static constexpr int kTableWords = 0;
  static constexpr int kOffset = 0;
  struct Raw {
    uint4 nibbles;
    uint32_t pair[3];
    uint32_t d;
    int j;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const size_t cells = static_cast<size_t>(n) * blocks;
    const uint32_t at = static_cast<uint32_t>(row * blocks + b);  // a matrix has fewer than 2^31 blocks
    const uint8_t* p = w + cells * 16 + static_cast<size_t>(at / 8) * 12;
    return {load_16(w + static_cast<size_t>(at) * 16), {load_4(p), load_4(p + 4), load_4(p + 8)}, load_4(w + cells * 16 + cells / 8 * 12 + static_cast<size_t>(at / 8) * 4), b & 7};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t*) {}
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
    const uint32_t v[4] = {r.nibbles.x, r.nibbles.y, r.nibbles.z, r.nibbles.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) code[i] = v[i & 3] >> 4 * (i / 4) & 0x0f0f0f0fu;
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    const int shift = 8 * (r.j & 3);
    const uint32_t a = r.pair[0] >> shift, b = r.pair[1] >> shift, c = r.pair[2] >> shift;
    const uint32_t scale = r.j < 4 ? a & 63u : (c & 15u) | (a >> 6 & 3u) << 4;
    const uint32_t min = r.j < 4 ? b & 63u : (c >> 4 & 15u) | (b >> 6 & 3u) << 4;
    const float d = half_float(static_cast<uint16_t>(r.d)), dmin = half_float(static_cast<uint16_t>(r.d >> 16));
    return {d * static_cast<float>(scale), 0.0f, -dmin * static_cast<float>(min), 1, 1};
  }
};

template <> struct Packed<QuantType::IQ2_S> {
  static constexpr int kTableWords = 2048;  // grid entry e: words e (values 0..3) and 1024 + e
  static constexpr int kOffset = 0;
  struct Raw {
    uint2 index_signs;
    uint32_t high_scale, d;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const size_t cells = static_cast<size_t>(n) * blocks;
    const uint32_t at = static_cast<uint32_t>(row * blocks + b);  // a matrix has fewer than 2^31 blocks
    return {load_8(w + static_cast<size_t>(at) * 8), load_2(w + cells * 8 + static_cast<size_t>(at) * 2), load_2(w + cells * 10 + static_cast<size_t>(at / 8) * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t* table) {
    for (int i = threadIdx.x; i < 1024 * Copies; i += blockDim.x) {
      table[i] = static_cast<uint32_t>(kGridIq2S[i / Copies]);
      table[1024 * Copies + i] = static_cast<uint32_t>(kGridIq2S[i / Copies] >> 32);
    }
  }
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t* table, uint32_t* code) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t e = (r.index_signs.x >> 8 * i & 255u) | (r.high_scale >> 2 * i & 3u) << 8;
      const uint32_t signs = r.index_signs.y >> 8 * i & 255u;
      code[2 * i] = negate_bytes(table[e * Copies], signs & 15u);
      code[2 * i + 1] = negate_bytes(table[(1024 + e) * Copies], signs >> 4);
    }
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    return {half_float(static_cast<uint16_t>(r.d)) * 0.125f, 0.0f, 0.0f, static_cast<int>(2 * (r.high_scale >> 8 & 15u) + 1),
            static_cast<int>(2 * (r.high_scale >> 12 & 15u) + 1)};
  }
};

template <> struct Packed<QuantType::NVFP4> {
  static constexpr int kTableWords = 0;
  static constexpr int kOffset = 0;
  struct Raw {
    uint4 nibbles;
    uint32_t scale;
  };
  static __device__ __forceinline__ Raw load(const uint8_t* w, int n, int blocks, int row, int b) {
    const size_t cells = static_cast<size_t>(n) * blocks;
    const uint32_t at = static_cast<uint32_t>(row * blocks + b);  // a matrix has fewer than 2^31 blocks
    return {load_16(w + static_cast<size_t>(at) * 16), load_2(w + cells * 16 + static_cast<size_t>(at) * 2)};
  }
  template <int Copies> static __device__ __forceinline__ void fill(uint32_t*) {}
  // Four E2M1 codes, doubled: 0 1 2 3 4 6 8 12 and their negatives, by byte permutes.
  static __device__ __forceinline__ uint32_t four(uint32_t nibbles) {
    const uint32_t index = nibbles & 0x7777u;
    const uint32_t plus = __byte_perm(0x03020100u, 0x0c080604u, index);
    const uint32_t minus = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, index);
    return __byte_perm(plus, minus, 0x3210u + (nibbles >> 1 & 0x4444u));
  }
  template <int Copies>
  static __device__ __forceinline__ void decode(const Raw& r, const uint32_t*, uint32_t* code) {
    const uint32_t v[4] = {r.nibbles.x, r.nibbles.y, r.nibbles.z, r.nibbles.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      code[2 * i] = four(v[i] & 0xffffu);
      code[2 * i + 1] = four(v[i] >> 16);
    }
  }
  static __device__ __forceinline__ Scales scales(const Raw& r) {
    return {ue4m3_halved(r.scale & 255u), ue4m3_halved(r.scale >> 8), 0.0f, 1, 1};
  }
};

}  // namespace strata

#include "packed_more.cuh"

namespace strata {

// Signed codes from stored ones (each at most 127 - kOffset), for products that cannot correct by the sum of codes.
template <QuantType T> __device__ __forceinline__ uint32_t centre(uint32_t codes) {
  if constexpr (Packed<T>::kOffset == 0) return codes;
  return ((codes | 0x80808080u) - 0x01010101u * Packed<T>::kOffset) ^ 0x80808080u;
}

}  // namespace strata
