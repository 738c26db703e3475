// Writing a sublayer's output into the residual streams, by one warp.
#pragma once

#include "device.cuh"

namespace strata {

// Values y of `features` neighbouring features of up to M rows (Units = M * features at most) go to C streams of `width` values:
// R_c + 2 sigmoid(inject_c / C) y; C = 0: one stream, x + y. What is read may be loaded before y is known.
template <int C, int Units> struct StreamWriter {
  static constexpr int kStreams = C == 0 ? 1 : C, kEach = (kStreams * Units + 31) / 32;
  const float *residual, *inject;
  float* out;
  int width;
  float before[kEach], weight[kEach];

  __device__ __forceinline__ StreamWriter(const float* r, const float* i, float* o, int w) : residual(r), inject(i), out(o), width(w) {}

  // Calls f(slot, feature r, row m, stream c) for this lane's values.
  template <class F> static __device__ __forceinline__ void each(int rows, int features, F f) {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int u = lane_id() + 32 * e, r = u % features, m = u / features / kStreams;
      if (m < rows) f(e, r, m, u / features % kStreams);
    }
  }
  __device__ __forceinline__ void load(int row0, int rows, int first, int features) {
    each(rows, features, [&](int e, int r, int m, int c) {
      if (first + r >= width) return;
      before[e] = residual[(static_cast<size_t>(row0 + m) * kStreams + c) * width + first + r];
      if constexpr (C > 0) weight[e] = inject[(row0 + m) * C + c];
    });
  }
  template <class Value> __device__ __forceinline__ void store(int row0, int rows, int first, int features, Value value) {
    each(rows, features, [&](int e, int r, int m, int c) {
      if (first + r >= width) return;
      float result;
      if constexpr (C > 0)
        result = fma32(2.0f * sigmoid32(div32(weight[e], static_cast<float>(C))), value(r, m), before[e]);
      else
        result = before[e] + value(r, m);
      out[(static_cast<size_t>(row0 + m) * kStreams + c) * width + first + r] = result;
    });
  }
};

}  // namespace strata
