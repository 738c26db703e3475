// The KV pool: [page][kv_head][cell in page][head_dim], float32 (0), IEEE half (1), or int8 (2) with a half scale per
// group of 64 values (per head, where heads are narrower).
#pragma once

#include "op.cuh"

namespace strata {

constexpr int kPageCells = 64, kKvGroup = 64;
enum KvType { kKvF32 = 0, kKvF16 = 1, kKvInt8 = 2 };

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

// Value `at` of a pool.
template <int Kv> __device__ __forceinline__ float kv_value(const void* pool, const unsigned short* scales, size_t at, int group) {
  if constexpr (Kv == kKvF32) return static_cast<const float*>(pool)[at];
  if constexpr (Kv == kKvF16) return half_float(static_cast<const unsigned short*>(pool)[at]);
  return static_cast<float>(static_cast<const int8_t*>(pool)[at]) * half_float(scales[at / group]);
}

// Eight neighbouring values from a multiple of eight on, all of one scale group (group: a multiple of eight).
template <int Kv>
__device__ __forceinline__ void kv_eight(const void* pool, const unsigned short* scales, size_t at, int group, float (&v)[8]) {
  if constexpr (Kv == kKvF32) {
    const float4 low = *reinterpret_cast<const float4*>(static_cast<const float*>(pool) + at);
    const float4 high = *(reinterpret_cast<const float4*>(static_cast<const float*>(pool) + at) + 1);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else if constexpr (Kv == kKvF16) {
    const uint4 raw = *reinterpret_cast<const uint4*>(static_cast<const unsigned short*>(pool) + at);
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = half_float(static_cast<uint16_t>(word[i]));
      v[2 * i + 1] = half_float(static_cast<uint16_t>(word[i] >> 16));
    }
  } else {
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const int8_t*>(pool) + at);
    const float d = half_float(scales[at / group]);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      v[i] = static_cast<float>(static_cast<int8_t>((i < 4 ? raw.x : raw.y) >> 8 * (i & 3))) * d;
  }
}

}  // namespace strata
