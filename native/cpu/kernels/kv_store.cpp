// kv_store: writes each row's keys and values to its cell of the pool.
// ptr: num_rows, positions int32, sequences int32, page_table int32 [seqs, pages_per_seq], k float [rows, kv_heads,
// head_dim], v, k_pool, v_pool, k_scales, v_scales (0 unless quantised); dim: kv_heads, head_dim, pages_per_seq, k_type,
// v_type, num_pages.
#include "cpu/kernels/kv.h"

namespace strata::STRATA_LEVEL {

// Stores return false when a value is not finite as stored: a score of minus infinity would hide it from later checks.
STRATA_HD bool store_half(const float* __restrict x, int64_t n, uint16_t* __restrict out) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = float_half(x[i]);
    finite &= (out[i] & 0x7c00u) != 0x7c00u;
  }
  return finite;
}

// Stores half(amax / steps) and gives 1 / it (0 for 0); false where either is not finite.
STRATA_HD bool store_scale(const float* __restrict x, int64_t n, float steps, uint16_t* __restrict scale, float* inverse) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = float_bits(x[i]) & 0x7fffffffu;
    bits = bits > magnitude ? bits : magnitude;
  }
  *scale = float_half(div32(bits_float(bits), steps));
  if (bits >= 0x7f800000u || (*scale & 0x7c00u) == 0x7c00u) return false;
  const float d = half_float(*scale);
  *inverse = d == 0.0f ? 0.0f : div32(1.0f, d);
  return true;
}

STRATA_HD uint8_t nibble(float x, float inverse) {
  const float code = rint32(fma32(x * inverse, 0.5f, 7.5f));
  return static_cast<uint8_t>(code > 15.0f ? 15.0f : code < 0.0f ? 0.0f : code);
}

// scale = half(amax / 15), code = rint(fma(x * (1 / scale), 0.5, 7.5)), held to 0 .. 15.
STRATA_HD bool store_nibbles(const float* __restrict x, int64_t n, uint8_t* __restrict out, uint16_t* __restrict scale) {
  float inverse;
  if (!store_scale(x, n, 15.0f, scale, &inverse)) return false;
  for (int64_t i = 0; i < n / 2; ++i)
    out[i] = static_cast<uint8_t>(nibble(x[i], inverse) | nibble(x[i + n / 2], inverse) << 4);
  return true;
}

// scale = half(amax / 127), code = rint(x * (1 / scale)), held to 127.
STRATA_HD bool store_int8(const float* __restrict x, int64_t n, int8_t* __restrict out, uint16_t* __restrict scale) {
  float inverse;
  if (!store_scale(x, n, 127.0f, scale, &inverse)) return false;
  for (int64_t i = 0; i < n; ++i) {
    const float code = rint32(x[i] * inverse);
    out[i] = static_cast<int8_t>(code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code);
  }
  return true;
}

STRATA_HD bool store_cell(const float* __restrict x, int64_t n, int64_t kv_type, uint64_t pool, uint64_t scales,
                          int64_t at) {
  if (kv_type == kKvF16) return store_half(x, n, reinterpret_cast<uint16_t*>(pool) + at);
  if (kv_type == kKvF32) {
    memcpy(reinterpret_cast<float*>(pool) + at, x, static_cast<size_t>(n) * sizeof(float));
    return true;
  }
  const int64_t group = kv_group(n);
  bool finite = true;
  for (int64_t i = 0; i < n; i += group) {
    uint16_t* scale = reinterpret_cast<uint16_t*>(scales) + (at + i) / group;
    finite &= kv_type == kKvNibbles ? store_nibbles(x + i, group, reinterpret_cast<uint8_t*>(pool) + (at + i) / 2, scale)
                                    : store_int8(x + i, group, reinterpret_cast<int8_t*>(pool) + at + i, scale);
  }
  return finite;
}

void kv_store(const Op& op, int thread, int threads) {
  const int64_t kv_heads = op.dim[0], head_dim = op.dim[1];
  const Range units = part(live_rows(op, 0) * kv_heads, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t row = u / kv_heads, position = op.at<const int32_t>(1)[row];
    const int64_t page = position < 0 ? -1
                                      : page_id(op.at<const int32_t>(3), op.dim[2], op.dim[5],
                                                op.at<const int32_t>(2)[row], position / kPageCells);
    if (page < 0) {
      op.fault(kFaultRange);
      continue;
    }
    const int64_t at = page_offset(page, kv_heads, u % kv_heads, head_dim) + position % kPageCells * head_dim;
    const bool keys_finite = store_cell(op.at<const float>(4) + u * head_dim, head_dim, op.dim[3], op.ptr[6], op.ptr[8], at);
    const bool values_finite = store_cell(op.at<const float>(5) + u * head_dim, head_dim, op.dim[4], op.ptr[7], op.ptr[9], at);
    if (!keys_finite || !values_finite) op.fault(kFaultNonFinite);
  }
}

}  // namespace strata::STRATA_LEVEL
