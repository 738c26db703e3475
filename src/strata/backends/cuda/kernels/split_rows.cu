// Float rows as the sum of two 16-bit floats a value, for wide_float.cu: bf16, or f16 of values times a power of two a row.
// Macros: STRATA_BF16. Planes [rows (padded)][k (padded to 64)]; rows from *live on and values beyond k are zero.
#include "op.cuh"

using namespace strata;

namespace {

// Nearest bf16, ties to even, of a finite value.
__device__ __forceinline__ uint32_t nearest_bf16(float x) {
  const uint32_t u = float_bits(x);
  return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

__device__ __forceinline__ void split(float x, uint32_t& high, uint32_t& low) {
#if STRATA_BF16
  high = nearest_bf16(x), low = nearest_bf16(x - bits_float(high << 16));
#else
  high = float_half(x), low = float_half(x - half_float(static_cast<uint16_t>(high)));
#endif
}

}  // namespace

// A thread block a row. scales (f16 only): what the row's products are multiplied by. Rows there are: *live - count, or count where `live`
// is null.
extern "C" __global__ void __launch_bounds__(256) split_rows(const int* live, int count, const float* x, uint16_t* high, uint16_t* low,
                                                             float* scales, int k, uint32_t* faults) {
  __shared__ float most[8];
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.x, padded = (k + 63) / 64 * 64, rows = live ? *live - count : count;
  const float* from = x + static_cast<int64_t>(row) * k;
  float scale = 1.0f;
#if !STRATA_BF16
  float amax = 0.0f;
  if (row < rows)
    for (int i = threadIdx.x; i < k; i += blockDim.x) amax = fmaxf(amax, fabsf(from[i]));
  amax = warp_max(amax);
  if (lane_id() == 0) most[warp_id()] = amax;
  __syncthreads();
  for (int w = 0; w < 8; ++w) amax = fmaxf(amax, most[w]);
  // The largest value lies in [2^13, 2^14): its exponent is 13 below the bias' 127 + 13.
  const int exponent = static_cast<int>(float_bits(amax) >> 23) - 127;
  const int shift = amax < 1e-30f ? 0 : 13 - exponent;
  scale = bits_float(static_cast<uint32_t>(127 + min(max(shift, -120), 120)) << 23);
  if (threadIdx.x == 0) scales[row] = div32(1.0f, scale);
#endif
  bool finite = true;
  for (int i = 2 * threadIdx.x; i < padded; i += 2 * blockDim.x) {
    uint32_t h[2] = {}, l[2] = {};
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (row < rows && i + e < k) {
        const float v = from[i + e];
        finite &= finite32(v);
        split(v * scale, h[e], l[e]);
      }
    const int64_t at = static_cast<int64_t>(row) * padded + i;
    *reinterpret_cast<uint32_t*>(high + at) = h[0] | h[1] << 16;
    *reinterpret_cast<uint32_t*>(low + at) = l[0] | l[1] << 16;
  }
  if (!finite) report(faults, kFaultNonFinite);
}
