// The powers of two that bring float rows into the range of f16, for what makes or reads the rows.
#pragma once

#include "op.cuh"

namespace strata {

// What a thread has seen of a row.
struct RowPower {
  float most = 0.0f;
  bool finite = true;

  __device__ __forceinline__ void add(float v) { finite &= finite32(v), most = fmaxf(most, fabsf(v)); }

  // The power that brings the largest value of a row, of which each of `Warps` warps has a part, to [2^13, 2^14); all threads call it together.
  // What is not finite is reported.
  template <int Warps> __device__ __forceinline__ float of_block(uint32_t* faults) const {
    __shared__ float part[Warps];
    if (!finite) report(faults, kFaultNonFinite);
    float amax = warp_max(most);
    if (lane_id() == 0) part[warp_id()] = amax;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < Warps; ++w) amax = fmaxf(amax, part[w]);
    const int shift = amax < 1e-30f ? 0 : 13 + 127 - static_cast<int>(float_bits(amax) >> 23);
    return bits_float(static_cast<uint32_t>(127 + min(max(shift, -120), 120)) << 23);
  }
};

}  // namespace strata
