// The KV pool: [page][kv_head][cell in page][head_dim], float32 (0), IEEE half (1), or with a half scale per group of 64 values (per
// head, where heads are narrower): int8 (2), or 4 bits (3): byte j of a group holds code j low and code j + half a group high, and a
// code c stands for (2 c - 15) * scale. Groups of `ratio` cells may lie in slots besides: [slot][kv_head][cell in group][head_dim].
#pragma once

#include "op.cuh"

namespace strata {

constexpr int kPageCells = 64, kKvGroup = 64;
enum KvType { kKvF32 = 0, kKvF16 = 1, kKvInt8 = 2, kKvNibbles = 3 };

// Page id of cells [64 p, 64 p + 64) of a sequence, or -1 when p or the id is out of range.
__device__ __forceinline__ int page_id(const int* table, int pages_per_seq, int num_pages, int sequence, int p) {
  if (sequence < 0 || p < 0 || p >= pages_per_seq) return -1;
  const int id = table[static_cast<size_t>(sequence) * pages_per_seq + p];
  return id >= 0 && id < num_pages ? id : -1;
}

// First value of cell `cell` of a head's page, counted in values.
__device__ __forceinline__ size_t cell_offset(int page, int kv_heads, int kv_head, int cell, int head_dim) {
  return ((static_cast<size_t>(page) * kv_heads + kv_head) * kPageCells + cell) * head_dim;
}

__device__ __forceinline__ int kv_group(int head_dim) { return head_dim < kKvGroup ? head_dim : kKvGroup; }

// Where groups of cells may lie besides; `table` [pages * 64 / ratio] holds a group's slot + 1, 0: nowhere. Null: no group does.
struct KvSlots {
  void *k, *v;
  unsigned short *k_scales, *v_scales;
  const int* table;
  int ratio;

  // The slot of cell `cell` of a page, or -1.
  __device__ __forceinline__ int of(int page, int cell) const {
    return table == nullptr ? -1 : table[page * (kPageCells / ratio) + cell / ratio] - 1;
  }
  // First value of the cell of a head in a slot.
  __device__ __forceinline__ size_t offset(int slot, int kv_heads, int kv_head, int cell, int head_dim) const {
    return ((static_cast<size_t>(slot) * kv_heads + kv_head) * ratio + cell % ratio) * head_dim;
  }
};

}  // namespace strata
