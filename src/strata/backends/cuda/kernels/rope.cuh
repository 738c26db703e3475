// Heads in shared memory, a warp each: normed where they have a weight, rotated by a row's position.
#pragma once

#include "step.cuh"

namespace strata {

struct Rope {
  const float* table;  // [max_positions, rotary / 2, 2]: cos, sin
  int rotary, style, max_positions;

  // Rotates a head in shared memory. style 0: pairs (2 i, 2 i + 1); 1: pairs (i, i + rotary / 2).
  __device__ __forceinline__ void turn(float* x, int position) const {
    const float* angle = table + static_cast<size_t>(position) * rotary;
    for (int i = lane_id(); i < rotary / 2; i += 32) {
      const int at = style == 0 ? 2 * i : i, partner = at + (style == 0 ? 1 : rotary / 2);
      const float a = x[at], b = x[partner], cosine = angle[2 * i], sine = angle[2 * i + 1];
      x[at] = fma32(a, cosine, -(b * sine));
      x[partner] = fma32(b, cosine, a * sine);
    }
    __syncwarp();
  }
};

// A head's values, which are on their way while positions and pages are read; of wide heads the first.
struct Held {
  static constexpr int kHeld = 8;
  float at[kHeld];
  __device__ __forceinline__ void load(const float* from, int dim) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane_id() + 32 * i < dim) at[i] = from[lane_id() + 32 * i];
  }
  __device__ __forceinline__ void store(const float* from, int dim, float* x) const {
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane_id() + 32 * i < dim) x[lane_id() + 32 * i] = at[i];
    for (int i = lane_id() + 32 * kHeld; i < dim; i += 32) x[i] = from[i];
  }
};

// A head to shared memory, normed where it has a weight.
__device__ __forceinline__ void take(const Held& held, const float* from, const float* weight, int dim, float eps, float* x) {
  held.store(from, dim, x);
  __syncwarp();
  if (weight == nullptr) return;
  const float inverse = div32(1.0f, sqrt32(div32(warp_dot(x, x, dim), static_cast<float>(dim)) + eps));
  for (int i = lane_id(); i < dim; i += 32) x[i] = (x[i] * inverse) * weight[i];
  __syncwarp();
}

}  // namespace strata
