// add, add_bias, silu_mul, gelu_mul, scale: element by element over the live rows of `width` values.
#include "op.cuh"

using namespace strata;

template <typename F> __device__ __forceinline__ void each(const int* live, int width, F f) {
  dependency_launch();
  dependency_wait();
  const int n = *live * width;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) f(i);
}

extern "C" {

__global__ void add(const int* live, const float* a, const float* b, float* out, int width) {
  each(live, width, [=](int i) { out[i] = a[i] + b[i]; });
}

__global__ void add_bias(const int* live, const float* x, const float* bias, float* out, int width) {
  each(live, width, [=](int i) { out[i] = x[i] + bias[i % width]; });
}

__global__ void silu_mul(const int* live, const float* gate, const float* up, float* out, int width) {
  each(live, width, [=](int i) { out[i] = silu32(gate[i]) * up[i]; });
}

__global__ void gelu_mul(const int* live, const float* gate, const float* up, float* out, int width) {
  each(live, width, [=](int i) { out[i] = gelu32(gate[i]) * up[i]; });
}

__global__ void scale(const int* live, const float* x, float* out, int width, float factor) {
  each(live, width, [=](int i) { out[i] = x[i] * factor; });
}

}  // extern "C"
