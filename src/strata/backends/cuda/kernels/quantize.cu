// quantize: float rows of k values to q8 planes; a warp a block of 32.
#include "op.cuh"
#include "step.cuh"

extern "C" __global__ void quantize(const int* live, const float* x, int8_t* q, float* d, int16_t* sums, uint32_t* faults, int k) {
  using namespace strata;
  dependency_launch();
  dependency_wait();
  const int b = blockIdx.x * (blockDim.x / 32) + warp_id();
  if (b >= *live * (k / 32)) return;
  const float v = x[static_cast<size_t>(b) * 32 + lane_id()];
  if (!finite32(v)) report(faults, kFaultNonFinite);
  quantize_block(v, q + static_cast<size_t>(b) * 32, d + b, sums + 2 * static_cast<size_t>(b));
}
