// The KV pool: [page][kv_head][cell in page][head_dim], float32 or IEEE half.
#pragma once
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

constexpr int kPageCells = 64;
enum KvType : int64_t { kKvF32 = 0, kKvF16 = 1 };

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

}  // namespace strata::STRATA_LEVEL
