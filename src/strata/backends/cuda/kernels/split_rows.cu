// Float rows times a power of two a row as f16, or as the sum of two f16 (22 bits), for wide_float.cu. Macro: STRATA_TYPE (of the rows).
// Planes [rows (padded)][k (padded to 64)]; rows that are not there and values beyond k are zero.
#include "lanes.cuh"
#include "op.cuh"

using namespace strata;

// A thread block a row. `low` null: one f16 a value. scales: what the row's products are multiplied by. Rows there are: *live - count, or
// count where `live` is null.
extern "C" __global__ void __launch_bounds__(256) split_rows(const int* live, int count, const uint8_t* x, uint16_t* high, uint16_t* low,
                                                             float* scales, int k, uint32_t* faults) {
  constexpr QuantType T = STRATA_TYPE;
  __shared__ float most[8];
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.x, padded = (k + 63) / 64 * 64, rows = live ? *live - count : count;
  const uint8_t* from = x + static_cast<int64_t>(row) * k * Layout<T>::bytes;
  float amax = 0.0f;
  bool finite = true;
  if (row < rows)
    for (int i = threadIdx.x; i < k; i += blockDim.x) {
      const float v = one_value<T>(from + i * Layout<T>::bytes);
      finite &= finite32(v);
      amax = fmaxf(amax, fabsf(v));
    }
  if (!finite) report(faults, kFaultNonFinite);
  amax = warp_max(amax);
  if (lane_id() == 0) most[warp_id()] = amax;
  __syncthreads();
  for (int w = 0; w < 8; ++w) amax = fmaxf(amax, most[w]);
  // The largest value comes to lie in [2^13, 2^14).
  const int shift = amax < 1e-30f ? 0 : 13 + 127 - static_cast<int>(float_bits(amax) >> 23);
  const float scale = bits_float(static_cast<uint32_t>(127 + min(max(shift, -120), 120)) << 23);
  if (threadIdx.x == 0) scales[row] = div32(1.0f, scale);
  for (int i = 2 * threadIdx.x; i < padded; i += 2 * blockDim.x) {
    uint32_t h[2] = {}, l[2] = {};
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (row < rows && i + e < k) {
        const float v = one_value<T>(from + (i + e) * Layout<T>::bytes) * scale;
        h[e] = float_half(v), l[e] = float_half(v - half_float(static_cast<uint16_t>(h[e])));
      }
    const int64_t at = static_cast<int64_t>(row) * padded + i;
    *reinterpret_cast<uint32_t*>(high + at) = h[0] | h[1] << 16;
    if (low != nullptr) *reinterpret_cast<uint32_t*>(low + at) = l[0] | l[1] << 16;
  }
}
