// What wide_float.cu needs of its operands. row_scales: powers of two that bring float rows into the range of f16. split_rows: weight rows
// times such a power as f16, or as the sum of two f16 (22 bits).
// Macro: STRATA_TYPE (of the rows).
#include "lanes.cuh"
#include "op.cuh"
#include "row_power.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;

// Of a row in memory, by a thread block of 256 threads.
__device__ __forceinline__ float power_of(const uint8_t* row, int k, uint32_t* faults) {
  RowPower power;
#pragma unroll 4
  for (int i = threadIdx.x; i < k; i += blockDim.x) power.add(one_value<T>(row + static_cast<size_t>(i) * Layout<T>::bytes));
  return power.of_block<8>(faults);
}

}  // namespace

extern "C" {

// scales[row], a thread block of 256 threads a row.
__global__ void __launch_bounds__(256) row_scales(const int* live, const uint8_t* x, float* scales, int k, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.x;
  if (row >= *live) return;
  const float scale = power_of(x + static_cast<size_t>(row) * k * Layout<T>::bytes, k, faults);
  if (threadIdx.x == 0) scales[row] = scale;
}

// Planes [rows][k (padded to 64)], zero beyond k; `low` null: one f16 a value. scales: what the row's products are multiplied by. A thread
// block of 256 threads a row.
__global__ void __launch_bounds__(256) split_rows(const uint8_t* x, uint16_t* high, uint16_t* low, float* scales, int k, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.x, padded = (k + 63) / 64 * 64;
  const uint8_t* from = x + static_cast<size_t>(row) * k * Layout<T>::bytes;
  const float scale = power_of(from, k, faults);
  if (threadIdx.x == 0) scales[row] = div32(1.0f, scale);
  for (int i = 2 * threadIdx.x; i < padded; i += 2 * blockDim.x) {
    uint32_t h[2] = {}, l[2] = {};
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (i + e < k) {
        const float v = one_value<T>(from + static_cast<size_t>(i + e) * Layout<T>::bytes) * scale;
        h[e] = float_half(v), l[e] = float_half(v - half_float(static_cast<uint16_t>(h[e])));
      }
    const int64_t at = static_cast<int64_t>(row) * padded + i;
    *reinterpret_cast<uint32_t*>(high + at) = h[0] | h[1] << 16;
    if (low != nullptr) *reinterpret_cast<uint32_t*>(low + at) = l[0] | l[1] << 16;
  }
}

}  // extern "C"
