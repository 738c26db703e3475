// Writing a group of values of a cell, in the pool's type, by one warp.
#pragma once

#include "kv.cuh"

namespace strata {

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
    float amax = 0.0f;
    bool bad = false;
    for (int i = lane_id(); i < n; i += 32) amax = fmaxf(amax, fabsf(x[i])), bad |= !finite32(x[i]);
    amax = warp_max(amax);
    const uint16_t scale = float_half(div32(amax, 127.0f));
    if (__any_sync(kFullWarp, bad) || (scale & 0x7c00u) == 0x7c00u) return false;
    const float d = half_float(scale), inverse = d == 0.0f ? 0.0f : div32(1.0f, d);
    for (int i = lane_id(); i < n; i += 32) {
      const float code = rint32(x[i] * inverse);
      static_cast<int8_t*>(pool)[at + i] = static_cast<int8_t>(code > 127.0f ? 127.0f : code < -127.0f ? -127.0f : code);
    }
    if (lane_id() == 0) scales[at / group] = scale;
  }
  return finite;
}

}  // namespace strata
