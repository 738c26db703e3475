// Cells from page-locked RAM to device memory by one warp, 16 bytes a lane.
#pragma once

#include "device.cuh"

namespace strata {

template <class T> __device__ __forceinline__ void copy_units(uint8_t* to, const uint8_t* from, int count) {
  constexpr int held = 4;
  for (int i = lane_id(); i < count; i += 32 * held) {
    T value[held];
#pragma unroll
    for (int e = 0; e < held; ++e)
      if (i + 32 * e < count) value[e] = reinterpret_cast<const T*>(from)[i + 32 * e];
#pragma unroll
    for (int e = 0; e < held; ++e)
      if (i + 32 * e < count) reinterpret_cast<T*>(to)[i + 32 * e] = value[e];
  }
}

// Places and `bytes` are even.
__device__ __forceinline__ void copy_bytes(void* to, const void* from, int bytes) {
  uint8_t* out = static_cast<uint8_t*>(to);
  const uint8_t* in = static_cast<const uint8_t*>(from);
  if ((reinterpret_cast<size_t>(out) | reinterpret_cast<size_t>(in) | static_cast<size_t>(bytes)) % 16 == 0)
    return copy_units<uint4>(out, in, bytes / 16);
  copy_units<unsigned short>(out, in, bytes / 2);
}

}  // namespace strata
