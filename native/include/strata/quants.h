// Block formats: raw bytes to 32-value integer blocks, one step of the contract's product, and float32 values.
#pragma once

#include "strata/quant_parts.h"

namespace strata {

// Format<T>::block32(super_block, i, out): group i (of values / 32) of the block at super_block, at any address.
template <QuantType T> struct Format : Layout<T> {};

// ---- layouts ---------------------------------------------------------------------------------------------------

#define STRATA_FORMAT(name) template <> struct Format<QuantType::name> : Layout<QuantType::name>
#define STRATA_BLOCK32 static STRATA_HD void block32

STRATA_FORMAT(Q4_0) {  // f16 d, nibbles: d (q - 8)
  STRATA_BLOCK32(const uint8_t* p, int, Block32& out) {
    set_scale(out, load_half(p));
    nibbles32(p + 2, 8, out.code);
  }
};

STRATA_FORMAT(Q4_1) {  // f16 d, m, nibbles: d q + m
  STRATA_BLOCK32(const uint8_t* p, int, Block32& out) {
    set_scale(out, load_half(p));
    set_mins(out, load_half(p + 2), 1, 1);
    nibbles32(p + 4, 0, out.code);
  }
};

STRATA_FORMAT(Q5_0) {  // f16 d, fifth bits, nibbles: d (q - 16)
  STRATA_BLOCK32(const uint8_t* p, int, Block32& out) {
    set_scale(out, load_half(p));
    five_bits32(p + 6, load32(p + 2), 16, out.code);
  }
};

STRATA_FORMAT(Q5_1) {  // f16 d, m, fifth bits, nibbles: d q + m
  STRATA_BLOCK32(const uint8_t* p, int, Block32& out) {
    set_scale(out, load_half(p));
    set_mins(out, load_half(p + 2), 1, 1);
    five_bits32(p + 8, load32(p + 4), 0, out.code);
  }
};

STRATA_FORMAT(Q8_0) {  // f16 d, int8
  STRATA_BLOCK32(const uint8_t* p, int, Block32& out) {
    set_scale(out, load_half(p));
    for (int j = 0; j < 32; ++j) out.code[j] = static_cast<int8_t>(p[2 + j]);
  }
};

STRATA_FORMAT(Q2_0) {  // f16 d, value j in byte j / 4 at bits 2 (j mod 4): d (q - 1)
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    set_scale(out, load_half(p));
    for (int h = 0; h < 2; ++h) {
      const uint32_t word = load32(p + 2 + 8 * i + 4 * h);
      STRATA_LOOP_16
      for (int j = 0; j < 16; ++j) out.code[16 * h + j] = static_cast<int8_t>(static_cast<int>(word >> 2 * j & 3) - 1);
    }
  }
};

STRATA_FORMAT(Q2_K) {  // 16 x (4-bit scale, 4-bit min), 64 B of 2-bit, f16 d, dmin: d s q - dmin m
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const int a = p[2 * i], b = p[2 * i + 1];
    set_scales(out, load_half(p + 80), a & 15, b & 15);
    set_mins(out, -load_half(p + 82), a >> 4, b >> 4);
    field32(p + 16 + i / 4 * 32, 2 * (i % 4), 3, 0, out.code);
  }
};

STRATA_FORMAT(Q3_K) {  // 32 B third bits, 64 B low 2 bits, 16 6-bit scales less 32, f16 d; third bit clear: less 4
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    set_scales(out, load_half(p + 108), scale(p + 96, 2 * i), scale(p + 96, 2 * i + 1));
    field32(p + 32 + i / 4 * 32, 2 * (i % 4), 3, 4, out.code);
    add_bit32(p, i, 4, out.code);
  }
  static STRATA_HD int32_t scale(const uint8_t* p, int s) {
    const int low = s < 8 ? p[s] & 15 : p[s - 8] >> 4, high = p[8 + s % 4] >> 2 * (s / 4) & 3;
    return (low | high << 4) - 32;
  }
};

STRATA_FORMAT(Q4_K) {  // f16 d, dmin, 8 x (6-bit scale, min), 128 B nibbles: d s q - dmin m
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const int32_t min = min6(p + 4, i);
    set_scale(out, load_half(p), scale6(p + 4, i));
    set_mins(out, -load_half(p + 2), min, min);
    field32(p + 16 + i / 2 * 32, 4 * (i % 2), 15, 0, out.code);
  }
};

STRATA_FORMAT(Q5_K) {  // as Q4_K, 32 B of fifth bits before the nibbles
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const int32_t min = min6(p + 4, i);
    set_scale(out, load_half(p), scale6(p + 4, i));
    set_mins(out, -load_half(p + 2), min, min);
    field32(p + 48 + i / 2 * 32, 4 * (i % 2), 15, 0, out.code);
    add_bit32(p + 16, i, 16, out.code);
  }
};

STRATA_FORMAT(Q6_K) {  // 128 B low nibbles, 64 B high 2 bits, 16 int8 scales, f16 d: d s (q - 32)
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const int part = i / 4, r = i % 4;  // halves of 128 values
    const uint8_t *low = p + 64 * part + 32 * (r % 2), *high = p + 128 + 32 * part, *s = p + 192 + 2 * i;
    set_scales(out, load_half(p + 208), static_cast<int8_t>(s[0]), static_cast<int8_t>(s[1]));
    for (int j = 0; j < 32; ++j)
      out.code[j] = static_cast<int8_t>(((low[j] >> 4 * (r / 2) & 15) | (high[j] >> 2 * r & 3) << 4) - 32);
  }
};

STRATA_FORMAT(IQ1_S) {  // f16 d, 32 B low index, 8 x u16 (4 x 3 high bits, 3-bit scale, sign): d (2 s + 1) (g +- 1/8)
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const uint32_t word = load16(p + 34 + 2 * i);
    set_scale(out, load_half(p) * 0.125f, 2 * (word >> 12 & 7) + 1);
    for (int l = 0; l < 4; ++l) put8(kGridIq1S[p[2 + 4 * i + l] | (word >> 3 * l & 7) << 8], out.code + 8 * l);
    const int delta = word & 0x8000 ? -1 : 1;
    for (int j = 0; j < 32; ++j) out.code[j] = static_cast<int8_t>(out.code[j] + delta);
  }
};

STRATA_FORMAT(IQ1_M) {  // 32 B low index, 16 B nibbles (3 high bits, sign), 4 x u16 (4 x 3-bit scale, 4 bits of f16 d)
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    uint32_t d = 0;
    for (int l = 0; l < 4; ++l) d |= (load16(p + 48 + 2 * l) >> 12) << 4 * l;
    const uint32_t scales = load16(p + 48 + i / 2 * 2) >> 6 * (i % 2);
    set_scales(out, half_float(static_cast<uint16_t>(d)) * 0.125f, 2 * (scales & 7) + 1, 2 * (scales >> 3 & 7) + 1);
    for (int l = 0; l < 4; ++l) {
      const int nibble = p[32 + 2 * i + l / 2] >> 4 * (l % 2) & 15, delta = nibble & 8 ? -1 : 1;
      put8(kGridIq1S[p[4 * i + l] | (nibble & 7) << 8], out.code + 8 * l);
      for (int j = 0; j < 8; ++j) out.code[8 * l + j] = static_cast<int8_t>(out.code[8 * l + j] + delta);
    }
  }
};

STRATA_FORMAT(IQ2_XXS) {  // f16 d, 8 x (4 B index, u32 of 4 x 7 signs and 4-bit scale): d (0.5 + s) / 4 g
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const uint8_t* index = p + 2 + 8 * i;
    const uint32_t word = load32(index + 4);
    set_scale(out, load_half(p) * 0.125f, 2 * (word >> 28) + 1);
    for (int l = 0; l < 4; ++l) put8(kGridIq2Xxs[index[l]], out.code + 8 * l);
    negate32(sign_bytes(word), out.code);
  }
};

STRATA_FORMAT(IQ2_XS) {  // f16 d, 32 x u16 (9-bit index, 7 signs), 16 4-bit scales: d (0.5 + s) / 4 g
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const uint32_t s = p[66 + i];
    uint32_t signs = 0;
    set_scales(out, load_half(p) * 0.125f, 2 * (s & 15) + 1, 2 * (s >> 4) + 1);
    for (int l = 0; l < 4; ++l) {
      const uint32_t word = load16(p + 2 + 8 * i + 2 * l);
      put8(kGridIq2Xs[word & 511], out.code + 8 * l);
      signs |= sign_byte(word >> 9) << 8 * l;
    }
    negate32(signs, out.code);
  }
};

STRATA_FORMAT(IQ2_S) {  // f16 d, 32 B low index, 32 B signs, 8 B high 2 bits, 16 4-bit scales: d (0.5 + s) / 4 g
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const uint32_t high = p[66 + i], s = p[74 + i];
    set_scales(out, load_half(p) * 0.125f, 2 * (s & 15) + 1, 2 * (s >> 4) + 1);
    for (int l = 0; l < 4; ++l) put8(kGridIq2S[p[2 + 4 * i + l] | (high >> 2 * l & 3) << 8], out.code + 8 * l);
    negate32(load32(p + 34 + 4 * i), out.code);
  }
};

STRATA_FORMAT(IQ3_XXS) {  // f16 d, 64 B index, 8 x u32 of 4 x 7 signs and 4-bit scale: d (0.5 + s) / 2 g
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const uint32_t word = load32(p + 66 + 4 * i);
    set_scale(out, load_half(p) * 0.25f, 2 * (word >> 28) + 1);
    for (int l = 0; l < 8; ++l) put4(kGridIq3Xxs[p[2 + 8 * i + l]], out.code + 4 * l);
    negate32(sign_bytes(word), out.code);
  }
};

STRATA_FORMAT(IQ3_S) {  // f16 d, 64 B low index, 8 B ninth bits, 32 B signs, 8 4-bit scales: d (1 + 2 s) g
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const uint32_t high = p[66 + i], s = p[106 + i / 2] >> 4 * (i % 2) & 15;
    set_scale(out, load_half(p), 2 * s + 1);
    for (int l = 0; l < 8; ++l) put4(kGridIq3S[p[2 + 8 * i + l] | (high >> l & 1) << 8], out.code + 4 * l);
    negate32(load32(p + 74 + 4 * i), out.code);
  }
};

STRATA_FORMAT(IQ4_NL) {  // f16 d, nibbles into the IQ4 table
  STRATA_BLOCK32(const uint8_t* p, int, Block32& out) {
    set_scale(out, load_half(p));
    nibble_table32(p + 2, kIq4Values, out.code);
  }
};

STRATA_FORMAT(IQ4_XS) {  // f16 d, 8 6-bit scales less 32 (u16 high bits, 4 B low), nibbles into the IQ4 table
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    const uint32_t low = p[4 + i / 2] >> 4 * (i % 2) & 15, high = load16(p + 2) >> 2 * i & 3;
    set_scale(out, load_half(p), static_cast<int32_t>(low | high << 4) - 32);
    nibble_table32(p + 8 + 16 * i, kIq4Values, out.code);
  }
};

STRATA_FORMAT(TQ1_0) {  // base-3 digits, 5 a byte (32 B, 16 B), then 4 a byte (4 B); f16 d last: d (q - 1)
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    set_scale(out, load_half(p + 52));
    for (int j = 0; j < 32; ++j) {
      const int v = 32 * i + j;
      const uint8_t byte = v < 160 ? p[v % 32] : v < 240 ? p[32 + v % 16] : p[48 + v % 4];
      const uint8_t power = kPowersOf3[v < 160 ? v / 32 : v < 240 ? (v - 160) / 16 : (v - 240) / 4];
      out.code[j] = static_cast<int8_t>((static_cast<uint8_t>(byte * power) * 3 >> 8) - 1);
    }
  }
};

STRATA_FORMAT(TQ2_0) {  // 64 B of 2-bit, f16 d last: d (q - 1)
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    set_scale(out, load_half(p + 64));
    field32(p + i / 4 * 32, 2 * (i % 4), 3, 1, out.code);
  }
};

STRATA_FORMAT(MXFP4) {  // E8M0 scale, nibbles of E2M1
  STRATA_BLOCK32(const uint8_t* p, int, Block32& out) {
    set_scale(out, e8m0_halved(p[0]));
    nibble_table32(p + 1, kE2m1Doubled, out.code);
  }
};

STRATA_FORMAT(NVFP4) {  // 4 UE4M3 scales; per 16 values 8 B of E2M1, low nibbles first
  STRATA_BLOCK32(const uint8_t* p, int i, Block32& out) {
    set_scale(out, 0.0f);
    for (int h = 0; h < 2; ++h) {
      const uint8_t* q = p + 4 + 8 * (2 * i + h);
      out.d[h] = ue4m3_halved(p[2 * i + h]);
      for (int j = 0; j < 8; ++j) {
        out.code[16 * h + j] = kE2m1Doubled[q[j] & 15];
        out.code[16 * h + 8 + j] = kE2m1Doubled[q[j] >> 4];
      }
    }
  }
};

#undef STRATA_FORMAT
#undef STRATA_BLOCK32

// ---- uses ------------------------------------------------------------------------------------------------------

STRATA_HD int32_t sum_products16(const int8_t* a, const int8_t* b) {
  int32_t sum = 0;
  STRATA_LOOP_16
  for (int j = 0; j < 16; ++j) sum += a[j] * b[j];
  return sum;
}

// Read as two halves: layouts write codes by halves, and a wider read would wait for both to reach the cache.
STRATA_HD int32_t sum_products32(const int8_t* a, const int8_t* b) {
  int32_t sum = 0;
  STRATA_LOOP_16
  for (int j = 0; j < 16; ++j) sum += a[j] * b[j] + a[j + 16] * b[j + 16];
  return sum;
}

// One step of the contract's chain: y plus a weight block times an activation block (codes, sums of codes per 16,
// scale d_a). Every integer sum stays below 2^24 (tests/quants), so it is exact in int32 and as a float.
template <QuantType T>
STRATA_HD float dot32(const Block32& w, const int8_t* code, const int16_t* sums16, float d_a, float y) {
  if constexpr (Format<T>::scale16) {
    y = dot_step(sum_products16(w.code, code), w.d[0] * static_cast<float>(w.scale[0]), d_a, y);
    y = dot_step(sum_products16(w.code + 16, code + 16), w.d[1] * static_cast<float>(w.scale[1]), d_a, y);
  } else if constexpr (Format<T>::halves) {
    const int32_t first = w.scale[0] * sum_products16(w.code, code);
    const int32_t second = w.scale[1] * sum_products16(w.code + 16, code + 16);
    y = dot_step(first + second, w.d[0], d_a, y);
  } else {
    y = dot_step(sum_products32(w.code, code), w.d[0] * static_cast<float>(w.scale[0]), d_a, y);
  }
  if constexpr (Format<T>::has_min && Format<T>::halves)
    y = dot_step(w.min[0] * sums16[0] + w.min[1] * sums16[1], w.dmin, d_a, y);
  else if constexpr (Format<T>::has_min)
    y = min_step(w.dmin * static_cast<float>(w.min[0]), sums16[0] + sums16[1], d_a, y);
  return y;
}

// Float32 values of 32 of a quantised block, its i-th, in the order of operations of strata.quants: (d scale) code, then + dmin min.
// Exact to the bit only without contraction (-ffp-contract=off, --fmad=false).
template <QuantType T> STRATA_HD void dequantize_32(const uint8_t* p, int i, float* out) {
  Block32 block;
  Format<T>::block32(p, i, block);
  for (int h = 0; h < 2; ++h) {
    const float scale = block.d[h] * static_cast<float>(block.scale[h]);
    const float min = block.dmin * static_cast<float>(block.min[h]);
    for (int j = 16 * h; j < 16 * h + 16; ++j) {
      out[j] = scale * static_cast<float>(block.code[j]);
      if constexpr (Format<T>::has_min) out[j] += min;
    }
  }
}

// Those of one whole block.
template <QuantType T> STRATA_HD void dequantize_block(const uint8_t* p, float* out) {
  if constexpr (T == QuantType::F32) {
    out[0] = bits_float(load32(p));
  } else if constexpr (T == QuantType::F16) {
    out[0] = load_half(p);
  } else if constexpr (T == QuantType::BF16) {
    out[0] = bf16_float(static_cast<uint16_t>(load16(p)));
  } else {
    for (int i = 0; i < Format<T>::values / 32; ++i) dequantize_32<T>(p, i, out + 32 * i);
  }
}

#if !defined(__CUDACC_RTC__)  // host only: device code is compiled for one type at a time

// Calls f.template operator()<T>() for the type given at run time; false for a type that is not in the table.
template <class F> bool with_format(QuantType type, F&& f) {
  switch (type) {
#define X(name, id, values, bytes, has_min, halves, scale16) \
  case QuantType::name: f.template operator()<QuantType::name>(); return true;
    STRATA_FLOAT_TYPES(X) STRATA_QUANTISED_TYPES(X)
#undef X
  }
  return false;
}

// The same for quantised types alone, for callers that use block32.
template <class F> bool with_quantised_format(QuantType type, F&& f) {
  switch (type) {
#define X(name, id, values, bytes, has_min, halves, scale16) \
  case QuantType::name: f.template operator()<QuantType::name>(); return true;
    STRATA_QUANTISED_TYPES(X)
#undef X
    default: return false;
  }
}

#endif

}  // namespace strata
