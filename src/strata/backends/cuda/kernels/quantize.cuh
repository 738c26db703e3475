// int8 blocks of values that neighbouring threads hold.
#pragma once

#include "op.cuh"

namespace strata {

// Eight threads hold a block of 32, four values each: its codes, scale and sums of codes. `ok`: whether there is a block.
__device__ __forceinline__ void quantize_four(const float4& v, bool ok, size_t at, int8_t* q, float* d, int16_t* sums, uint32_t* faults) {
  float amax = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
  for (int half = 4; half > 0; half /= 2) amax = fmaxf(amax, __shfl_xor_sync(kFullWarp, amax, half));
  const float inverse = block_inverse(amax);
  const int code[4] = {block_code(v.x, inverse), block_code(v.y, inverse), block_code(v.z, inverse), block_code(v.w, inverse)};
  int sum = code[0] + code[1] + code[2] + code[3];
#pragma unroll
  for (int half = 2; half > 0; half /= 2) sum += __shfl_xor_sync(kFullWarp, sum, half);
  if (!ok) return;
  if (!(finite32(v.x) && finite32(v.y) && finite32(v.z) && finite32(v.w))) report(faults, kFaultNonFinite);
  uint32_t word = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) word |= (static_cast<uint32_t>(code[e]) & 255u) << 8 * e;
  *reinterpret_cast<uint32_t*>(q + at) = word;
  if (threadIdx.x % 4 == 0) sums[at / 16] = static_cast<int16_t>(sum);
  if (threadIdx.x % 8 == 0) d[at / 32] = block_scale(amax);
}

}  // namespace strata
