// What block formats are made of: type ids, the 32-value integer block, and the bit fields that layouts share.
//
// A weight is code * scale * d (+ min * dmin) exactly, with integer scale and min. Layouts are
// those of GGUF files (ggml's block structs). The Python twin is src/strata/quants; tests hold the two equal in bits.
#pragma once

#include "strata/quants_tables.h"

namespace strata {

enum class QuantType : int {
#define X(name, id, values, bytes, has_min, halves, scale16) name = id,
  STRATA_FLOAT_TYPES(X) STRATA_QUANTISED_TYPES(X)
#undef X
};

// 32 weights along K. Index [h] is the half of 16 values; formats with one number per 32 repeat it.
struct Block32 {
  int8_t code[32];
  int32_t scale[2];
  float d[2];
  int32_t min[2];  // 0 without minimums, and then dmin is 0
  float dmin;      // sign folded in: the added term is + min * dmin
};

// Constants of a type: values and bytes of a block, and what a Block32 of it holds.
template <QuantType> struct Layout;
#define STRATA_LAYOUT(name, id, values_, bytes_, has_min_, halves_, scale16_, quantised_)                      \
  template <> struct Layout<QuantType::name> {                                                                 \
    static constexpr int values = values_, bytes = bytes_;                                                     \
    static constexpr bool quantised = quantised_;                                                              \
    static constexpr bool has_min = has_min_; /* minimums */                                                   \
    static constexpr bool halves = halves_;   /* an integer scale (and min) per 16 values, else per 32 */      \
    static constexpr bool scale16 = scale16_; /* a float scale per 16 values, else per 32 or block */          \
  };
#define X(name, id, values, bytes, has_min, halves, scale16) \
  STRATA_LAYOUT(name, id, values, bytes, has_min, halves, scale16, false)
STRATA_FLOAT_TYPES(X)
#undef X
#define X(name, id, values, bytes, has_min, halves, scale16) \
  STRATA_LAYOUT(name, id, values, bytes, has_min, halves, scale16, true)
STRATA_QUANTISED_TYPES(X)
#undef X
#undef STRATA_LAYOUT

// Before a loop of 16 turns: GCC would unroll it whole first and then not vectorise it (2 to 5 times slower).
#if defined(__GNUC__) && !defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#define STRATA_LOOP_16 _Pragma("GCC unroll 1")
#else
#define STRATA_LOOP_16
#endif

// ---- parts that layouts share ----------------------------------------------------------------------------------

// Little-endian words at any address.
STRATA_HD uint32_t load16(const uint8_t* p) { return p[0] | static_cast<uint32_t>(p[1]) << 8; }
STRATA_HD uint32_t load32(const uint8_t* p) { return load16(p) | load16(p + 2) << 16; }
STRATA_HD float load_half(const uint8_t* p) { return half_float(static_cast<uint16_t>(load16(p))); }

STRATA_HD void set_scales(Block32& out, float d, int32_t scale0, int32_t scale1) {
  out.scale[0] = scale0, out.scale[1] = scale1;
  out.d[0] = out.d[1] = d;
  out.min[0] = out.min[1] = 0;
  out.dmin = 0.0f;
}

STRATA_HD void set_scale(Block32& out, float d, int32_t scale = 1) { set_scales(out, d, scale, scale); }

STRATA_HD void set_mins(Block32& out, float dmin, int32_t min0, int32_t min1) {
  out.min[0] = min0, out.min[1] = min1;
  out.dmin = dmin;
}

// 16 bytes: low nibbles are values 0..15, high nibbles 16..31.
STRATA_HD void nibbles32(const uint8_t* p, int offset, int8_t* code) {
  STRATA_LOOP_16
  for (int j = 0; j < 16; ++j) code[j] = static_cast<int8_t>((p[j] & 15) - offset);
  STRATA_LOOP_16
  for (int j = 0; j < 16; ++j) code[j + 16] = static_cast<int8_t>((p[j] >> 4) - offset);
}

// The same, with a fifth bit for value j in bit j of `high`.
STRATA_HD void five_bits32(const uint8_t* p, uint32_t high, int offset, int8_t* code) {
  STRATA_LOOP_16
  for (int j = 0; j < 16; ++j)
    code[j] = static_cast<int8_t>(static_cast<int>((p[j] & 15u) | (high >> j & 1) << 4) - offset);
  STRATA_LOOP_16
  for (int j = 0; j < 16; ++j)
    code[j + 16] = static_cast<int8_t>(static_cast<int>((p[j] >> 4u) | (high >> (j + 16) & 1) << 4) - offset);
}

STRATA_HD void nibble_table32(const uint8_t* p, const int8_t* table, int8_t* code) {
  for (int j = 0; j < 16; ++j) {
    code[j] = table[p[j] & 15];
    code[j + 16] = table[p[j] >> 4];
  }
}

// One bit field of 32 bytes.
STRATA_HD void field32(const uint8_t* p, int shift, int mask, int offset, int8_t* code) {
  for (int j = 0; j < 32; ++j) code[j] = static_cast<int8_t>((p[j] >> shift & mask) - offset);
}

// Adds `weight` to code j where bit `bit` of byte j is set.
STRATA_HD void add_bit32(const uint8_t* p, int bit, int weight, int8_t* code) {
  for (int j = 0; j < 32; ++j) code[j] = static_cast<int8_t>(code[j] + (p[j] >> bit & 1) * weight);
}

STRATA_HD void put8(uint64_t entry, int8_t* code) {
  for (int j = 0; j < 8; ++j) code[j] = static_cast<int8_t>(entry >> 8 * j);
}

STRATA_HD void put4(uint32_t entry, int8_t* code) {
  for (int j = 0; j < 4; ++j) code[j] = static_cast<int8_t>(entry >> 8 * j);
}

// Negates code j where bit j is set.
STRATA_HD void negate32(uint32_t signs, int8_t* code) {
  for (int j = 0; j < 32; ++j) {
    const int s = -static_cast<int>(signs >> j & 1);
    code[j] = static_cast<int8_t>((code[j] ^ s) - s);
  }
}

// Seven stored signs; the eighth makes the number of minus signs even.
STRATA_HD uint32_t sign_byte(uint32_t seven) {
  seven &= 127;
  uint32_t parity = seven ^ seven >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | (parity & 1) << 7;
}

STRATA_HD uint32_t sign_bytes(uint32_t four_times_seven) {
  uint32_t signs = 0;
  for (int l = 0; l < 4; ++l) signs |= sign_byte(four_times_seven >> 7 * l) << 8 * l;
  return signs;
}

// Scale and min i of the 8 pairs of 6-bit numbers that Q4_K and Q5_K pack in 12 bytes.
STRATA_HD int32_t scale6(const uint8_t* p, int i) {
  return i < 4 ? p[i] & 63 : (p[i + 4] & 15) | (p[i - 4] >> 6) << 4;
}
STRATA_HD int32_t min6(const uint8_t* p, int i) { return i < 4 ? p[i + 4] & 63 : p[i + 4] >> 4 | (p[i] >> 6) << 4; }

// E8M0 and unsigned E4M3 scales, halved because the E2M1 table is doubled; all codes as ggml reads them.
STRATA_HD float e8m0_halved(uint32_t e) { return bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }
STRATA_HD float ue4m3_halved(uint32_t code) {
  const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
  if (code == 0x7f) return 0.0f;  // the NaN code
  if (exponent == 0) return static_cast<float>(mantissa) * 0.0009765625f;
  return bits_float((exponent + 119) << 23 | mantissa << 20);
}

}  // namespace strata
