// norm_pieces: RMS norm over the pieces of a row, a warp a piece; norm_row over a whole row by a thread block, with an addition before it and
// int8 blocks after it where they are asked for.
#include "quantize.cuh"
#include "step.cuh"

using namespace strata;

extern "C" {

__global__ void norm_pieces(const int* live, const float* x, const float* weight, float* out, int width, int pieces, float eps) {
  dependency_launch();
  dependency_wait();
  strata::rms_norm(x, weight, *live * pieces, width, eps, out);
}

// x [+ y, which goes to `sum`] is normed to `out` (or null) and to the planes q, d, sums (or null; width a multiple of 32). A thread
// holds four neighbouring values; width is a multiple of four.
__global__ void __launch_bounds__(1024) norm_row(const int* live, const float* x, const float* y, const float* weight, float* sum,
                                                 float* out, int8_t* q, float* d, int16_t* sums, uint32_t* faults, int width,
                                                 float eps) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ float inverse;
  float* row = reinterpret_cast<float*>(shared);
  const int own = 4 * threadIdx.x, stride = 4 * blockDim.x;
  float4 w = {0.0f, 0.0f, 0.0f, 0.0f};
  if (own < width) w = __ldg(reinterpret_cast<const float4*>(weight + own));
  dependency_launch();
  dependency_wait();
  const int r = blockIdx.x;
  if (r >= *live) return;
  const size_t at = static_cast<size_t>(r) * width;
  for (int i = own; i < width; i += stride) {
    float4 v = *reinterpret_cast<const float4*>(x + at + i);
    if (y != nullptr) {
      const float4 other = *reinterpret_cast<const float4*>(y + at + i);
      v = {v.x + other.x, v.y + other.y, v.z + other.z, v.w + other.w};
      *reinterpret_cast<float4*>(sum + at + i) = v;
    }
    *reinterpret_cast<float4*>(row + i) = v;
  }
  __syncthreads();
  if (warp_id() == 0) {
    const float mean = div32(square_sum(row, width), static_cast<float>(width));
    if (lane_id() == 0) inverse = div32(1.0f, sqrt32(mean + eps));
  }
  __syncthreads();
  const float scale = inverse;
  for (int begin = 0; begin < width; begin += stride) {
    const int i = begin + own;
    const bool ok = i < width;
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (ok) {
      if (begin > 0) w = __ldg(reinterpret_cast<const float4*>(weight + i));
      v = *reinterpret_cast<const float4*>(row + i);
      v = {(v.x * scale) * w.x, (v.y * scale) * w.y, (v.z * scale) * w.z, (v.w * scale) * w.w};
      if (out != nullptr) *reinterpret_cast<float4*>(out + at + i) = v;
    }
    if (q != nullptr) quantize_four(v, ok, at + i, q, d, sums, faults);
  }
}

}  // extern "C"
