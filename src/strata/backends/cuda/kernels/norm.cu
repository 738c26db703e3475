// norm_pieces: RMS norm over the pieces of a row, a warp a piece; norm_row over a whole row by a thread block, with an addition before it and
// int8 blocks after it where they are asked for.
#include "op.cuh"
#include "step.cuh"

using namespace strata;

namespace {

constexpr int kThreads = 512, kAhead = 8;  // norm weights a thread holds before the row is there

// Lane dot of the row with itself, by one warp.
__device__ __forceinline__ float square_sum(const float* row, int width) {
  float x = 0.0f;
  int i = lane_id();
#pragma unroll 1
  for (; i + 32 * 15 < width; i += 32 * 16) {
    float v[16];
#pragma unroll
    for (int j = 0; j < 16; ++j) v[j] = row[i + 32 * j];
#pragma unroll
    for (int j = 0; j < 16; ++j) x = fma32(v[j], v[j], x);
  }
  for (; i < width; i += 32) x = fma32(row[i], row[i], x);
  return warp_tree_sum(x);
}

}  // namespace

extern "C" {

__global__ void norm_pieces(const int* live, const float* x, const float* weight, float* out, int width, int pieces, float eps) {
  dependency_launch();
  dependency_wait();
  strata::rms_norm(x, weight, *live * pieces, width, eps, out);
}

// x [+ y, which goes to `sum`] is normed to `out` (or null) and to the planes q, d, sums (or null; width a multiple of 32).
__global__ void __launch_bounds__(kThreads) norm_row(const int* live, const float* x, const float* y, const float* weight, float* sum,
                                                     float* out, int8_t* q, float* d, int16_t* sums, uint32_t* faults, int width,
                                                     float eps) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ float inverse;
  float* row = reinterpret_cast<float*>(shared);
  float w[kAhead];
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    const int i = threadIdx.x + j * kThreads;
    w[j] = i < width ? __ldg(weight + i) : 0.0f;
  }
  dependency_launch();
  dependency_wait();
  const int r = blockIdx.x;
  if (r >= *live) return;
  const size_t at = static_cast<size_t>(r) * width;
#pragma unroll 4
  for (int i = threadIdx.x; i < width; i += kThreads) {
    float v = x[at + i];
    if (y != nullptr) sum[at + i] = v = v + y[at + i];
    row[i] = v;
  }
  __syncthreads();
  if (warp_id() == 0) {
    const float mean = div32(square_sum(row, width), static_cast<float>(width));
    if (lane_id() == 0) inverse = div32(1.0f, sqrt32(mean + eps));
  }
  __syncthreads();
  const float scale = inverse;
  auto finish = [&](int i, float factor) {
    const float v = (row[i] * scale) * factor;
    if (out != nullptr) out[at + i] = v;
    if (q == nullptr) return;
    if (!finite32(v)) report(faults, kFaultNonFinite);
    const size_t b = (at + i) / 32;
    quantize_block(v, q + b * 32, d + b, sums + 2 * b);
  };
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    const int i = threadIdx.x + j * kThreads;
    if (i < width) finish(i, w[j]);
  }
  for (int i = threadIdx.x + kAhead * kThreads; i < width; i += kThreads) finish(i, __ldg(weight + i));
}

}  // extern "C"
