// The KV pool: [page][kv_head][cell in page][head_dim], float32, IEEE half, or with a half scale per group of 64 values
// (per head, where heads are narrower): int8, or 4 bits: byte j of a group holds code j low and code j + half a group
// high, and a code c stands for (2 c - 15) * scale, exactly.
#pragma once
#include "cpu/kernels/kernel.h"
#include "cpu/kernels/simd.h"

namespace strata::STRATA_LEVEL {

constexpr int kPageCells = 64;
constexpr int64_t kKvGroup = 64;
enum KvType : int64_t { kKvF32 = 0, kKvF16 = 1, kKvInt8 = 2, kKvNibbles = 3 };

// Page id of a sequence's cells [64 p, 64 p + 64), or -1 when p or the id is out of range.
STRATA_HD int64_t page_id(const int32_t* table, int64_t pages_per_seq, int64_t num_pages, int64_t sequence, int64_t p) {
  if (sequence < 0 || p < 0 || p >= pages_per_seq) return -1;
  const int64_t id = table[sequence * pages_per_seq + p];
  return id >= 0 && id < num_pages ? id : -1;
}

// First value of a head's page, counted in values.
STRATA_HD int64_t page_offset(int64_t page, int64_t kv_heads, int64_t kv_head, int64_t head_dim) {
  return (page * kv_heads + kv_head) * kPageCells * head_dim;
}

STRATA_HD int64_t kv_group(int64_t head_dim) { return head_dim < kKvGroup ? head_dim : kKvGroup; }

// One group of 4-bit codes as floats; `half` bytes.
STRATA_HD void load_nibbles(const uint8_t* __restrict codes, float d, int64_t half, float* __restrict out) {
  for (int64_t i = 0; i < half; ++i) {
    out[i] = static_cast<float>(2 * (codes[i] & 15) - 15) * d;
    out[i + half] = static_cast<float>(2 * (codes[i] >> 4) - 15) * d;
  }
}

// `n` values of a cell as floats: from value `at` of the pool on, all within one head; of 4-bit cells whole groups.
STRATA_HD void load_values(int64_t kv_type, uint64_t pool, uint64_t scales, int64_t at, int64_t n, int64_t head_dim,
                           float* __restrict out) {
  if (kv_type == kKvF32) {
    memcpy(out, reinterpret_cast<const float*>(pool) + at, static_cast<size_t>(n) * sizeof(float));
  } else if (kv_type == kKvF16) {
    const uint16_t* __restrict half = reinterpret_cast<const uint16_t*>(pool) + at;
    int64_t i = 0;
#if STRATA_SIMD
    for (; i + 16 <= n; i += 16) store_floats(out + i, load_halves(half + i));
#endif
    for (; i < n; ++i) out[i] = half_float(half[i]);
  } else if (kv_type == kKvNibbles) {
    const int64_t group = kv_group(head_dim);
    for (int64_t i = 0; i < n; i += group)
      load_nibbles(reinterpret_cast<const uint8_t*>(pool) + (at + i) / 2,
                   half_float(reinterpret_cast<const uint16_t*>(scales)[(at + i) / group]), group / 2, out + i);
  } else {
    const int64_t group = kv_group(head_dim);
    const int8_t* __restrict codes = reinterpret_cast<const int8_t*>(pool) + at;
    for (int64_t begin = 0, end; begin < n; begin = end) {
      const int64_t in_group = group - (at + begin) % group;
      end = begin + in_group < n ? begin + in_group : n;
      const float d = half_float(reinterpret_cast<const uint16_t*>(scales)[(at + begin) / group]);
      for (int64_t i = begin; i < end; ++i) out[i] = static_cast<float>(codes[i]) * d;
    }
  }
}

}  // namespace strata::STRATA_LEVEL
