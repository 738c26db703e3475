// quantize_rows: float rows of k values to q8 planes; a warp a block of 32. silu_quantize: of silu(gate) * up.
#include "op.cuh"
#include "step.cuh"

using namespace strata;

namespace {

// Block b of the planes, of this lane's value.
__device__ __forceinline__ void put_block(float v, int b, int8_t* q, float* d, int16_t* sums, uint32_t* faults) {
  if (!finite32(v)) report(faults, kFaultNonFinite);
  quantize_block(v, q + static_cast<size_t>(b) * 32, d + b, sums + 2 * static_cast<size_t>(b));
}

__device__ __forceinline__ int unit() { return blockIdx.x * (blockDim.x / 32) + warp_id(); }

}  // namespace

extern "C" {

__global__ void quantize_rows(const int* live, const float* x, int8_t* q, float* d, int16_t* sums, uint32_t* faults, int k) {
  dependency_launch();
  dependency_wait();
  const int b = unit();
  if (b >= *live * (k / 32)) return;
  put_block(x[static_cast<size_t>(b) * 32 + lane_id()], b, q, d, sums, faults);
}

__global__ void silu_quantize(const int* live, const float* gate, const float* up, int8_t* q, float* d, int16_t* sums,
                              uint32_t* faults, int k) {
  dependency_launch();
  dependency_wait();
  const int b = unit();
  if (b >= *live * (k / 32)) return;
  const size_t at = static_cast<size_t>(b) * 32 + lane_id();
  put_block(silu32(gate[at]) * up[at], b, q, d, sums, faults);
}

}  // extern "C"
