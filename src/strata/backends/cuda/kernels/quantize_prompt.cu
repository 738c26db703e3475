// quantize_rows and silu_quantize (quantize.cu) of many rows: a thread four values, thread blocks in turn. k: a multiple of 32.
#include "quantize.cuh"
#include "step.cuh"

using namespace strata;

namespace {

__device__ __forceinline__ float4 four(const float* x, size_t at) { return *reinterpret_cast<const float4*>(x + at); }

template <class F>
__device__ __forceinline__ void each_four(int rows, int k, int8_t* q, float* d, int16_t* sums, uint32_t* faults, F value) {
  const size_t fours = static_cast<size_t>(rows) * k / 4, step = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t first = static_cast<size_t>(blockIdx.x) * blockDim.x; first < fours; first += step) {  // whole thread blocks: lanes exchange
    const size_t i = first + threadIdx.x;
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (i < fours) v = value(4 * i);
    quantize_four(v, i < fours, 4 * i, q, d, sums, faults);
  }
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(256) quantize_rows(const int* live, const float* x, int8_t* q, float* d, int16_t* sums, uint32_t* faults,
                                                     int k) {
  dependency_wait();
  dependency_launch();
  each_four(*live, k, q, d, sums, faults, [&](size_t at) { return four(x, at); });
}

__global__ void __launch_bounds__(256) silu_quantize(const int* live, const float* gate, const float* up, int8_t* q, float* d,
                                                     int16_t* sums, uint32_t* faults, int k) {
  dependency_wait();
  dependency_launch();
  each_four(*live, k, q, d, sums, faults, [&](size_t at) {
    const float4 g = four(gate, at), u = four(up, at);
    return float4{silu32(g.x) * u.x, silu32(g.y) * u.y, silu32(g.z) * u.z, silu32(g.w) * u.w};
  });
}

}  // extern "C"
