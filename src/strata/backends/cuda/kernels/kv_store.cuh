// Writing a group of values of a cell, in the pool's type, by one warp.
#pragma once

#include "hadamard.cuh"
#include "kv.cuh"

namespace strata {

__device__ __forceinline__ uint32_t nibble(float x, float inverse) {
  const float code = rint32(fma32(x * inverse, 0.5f, 7.5f));
  return static_cast<uint32_t>(code > 15.0f ? 15.0f : code < 0.0f ? 0.0f : code);
}

// Codes with a half scale: int8, or 4 bits.
__device__ __forceinline__ bool store_codes(const float* x, int n, bool nibbles, void* pool, unsigned short* scales, size_t at, int group) {
  float amax = 0.0f;
  bool bad = false;
  for (int i = lane_id(); i < n; i += 32) amax = fmaxf(amax, fabsf(x[i])), bad |= !finite32(x[i]);
  amax = warp_max(amax);
  const uint16_t scale = float_half(div32(amax, nibbles ? 15.0f : 127.0f));
  if (__any_sync(kFullWarp, bad) || (scale & 0x7c00u) == 0x7c00u) return false;
  const float d = half_float(scale), inverse = d == 0.0f ? 0.0f : div32(1.0f, d);
  for (int i = lane_id(); nibbles && i < n / 2; i += 32)
    static_cast<uint8_t*>(pool)[at / 2 + i] = static_cast<uint8_t>(nibble(x[i], inverse) | nibble(x[i + n / 2], inverse) << 4);
  for (int i = lane_id(); !nibbles && i < n; i += 32) {
    const float code = rint32(x[i] * inverse);
    static_cast<int8_t*>(pool)[at + i] = static_cast<int8_t>(code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code);
  }
  if (lane_id() == 0) scales[at / group] = scale;
  return true;
}

// False where a value is not finite, or its scale or half is not.
__device__ __forceinline__ bool store_group(const float* x, int n, int kv_type, void* pool, unsigned short* scales, size_t at, int group) {
  bool finite = true;
  if (kv_type == kKvF32) {
    for (int i = lane_id(); i < n; i += 32) static_cast<float*>(pool)[at + i] = x[i];
  } else if (kv_type == kKvF16) {
    for (int i = lane_id(); i < n; i += 32) {
      const uint16_t half = float_half(x[i]);
      static_cast<unsigned short*>(pool)[at + i] = half;
      finite &= (half & 0x7c00u) != 0x7c00u;
    }
  } else {
    finite = store_codes(x, n, kv_type == kKvNibbles, pool, scales, at, group);
  }
  return finite;
}

// A head of a cell to its page and, where its group lies in a slot too, there.
struct CellStore {
  void *k_pool, *v_pool;
  unsigned short *k_scales, *v_scales;
  KvSlots slots;
  int kv_heads, head_dim;

  __device__ __forceinline__ bool put(const float* x, bool is_value, int kv_type, int page, int head, int cell, int first, int n,
                                      int group) const {
    const size_t at = cell_offset(page, kv_heads, head, cell, head_dim) + first;
    const bool finite = store_group(x, n, kv_type, is_value ? v_pool : k_pool, is_value ? v_scales : k_scales, at, group);
    const int slot = slots.of(page, cell);
    if (slot >= 0)
      store_group(x, n, kv_type, is_value ? slots.v : slots.k, is_value ? slots.v_scales : slots.k_scales,
                  slots.offset(slot, kv_heads, head, cell, head_dim) + first, group);
    return finite;
  }
};

}  // namespace strata
