// Hyper-connections over rows of `streams` streams of `width` values, and norms of slices.
// One thread a value; grouped_norm a thread block a slice.
#include "rows.cuh"

using namespace strata;

constexpr int kTogether = 4;  // streams that a thread loads before it stores

// Index of this thread's value among live * width, and whether there is one.
struct Place {
  int row, column;
  bool live;
  __device__ __forceinline__ Place(const int* rows, int width) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    row = i / width, column = i % width, live = row < *rows;
  }
};

extern "C" {

// A thread block a slice, which lies in shared memory; one warp adds its squares.
__global__ void grouped_norm(const int* live, const float* x, const float* weight, float* out, int width, int groups, float eps) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ float scale;
  float* staged = reinterpret_cast<float*>(shared);
  dependency_wait();
  dependency_launch();
  const int u = blockIdx.x, slice = width / groups;
  if (u >= *live * groups) return;
  x += static_cast<size_t>(u) * slice, out += static_cast<size_t>(u) * slice, weight += u % groups * slice;
#pragma unroll 4
  for (int i = threadIdx.x; i < slice; i += blockDim.x) staged[i] = x[i];
  __syncthreads();
  if (warp_id() == 0) {
    const float sum = staged_dot(staged, staged, slice);
    if (lane_id() == 0) scale = div32(1.0f, sqrt32(div32(sum, static_cast<float>(slice)) + eps));
  }
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < slice; i += blockDim.x) out[i] = (staged[i] * scale) * weight[i];
}

__global__ void stream_tile(const int* live, const float* x, float* out, int width, int streams) {
  dependency_wait();
  dependency_launch();
  const Place at(live, width);
  if (!at.live) return;
  const float value = x[static_cast<size_t>(at.row) * width + at.column];
  for (int c = 0; c < streams; ++c) out[(static_cast<size_t>(at.row) * streams + c) * width + at.column] = value;
}

__global__ void scaled_silu(const int* live, const float* x, float* out, int width, int divisor) {
  dependency_wait();
  dependency_launch();
  const Place at(live, width);
  const size_t i = static_cast<size_t>(at.row) * width + at.column;
  if (at.live) out[i] = silu32(div32(x[i], static_cast<float>(divisor)));
}

// Mean over streams of sigmoid(gate) x.
__global__ void stream_mix(const int* live, const float* x, const float* gate, float* out, int width, int streams) {
  dependency_wait();
  dependency_launch();
  const Place at(live, width);
  if (!at.live) return;
  float total = 0.0f;
  for (int c = 0; c < streams; ++c) {
    const size_t i = (static_cast<size_t>(at.row) * streams + c) * width + at.column;
    total = fma32(sigmoid32(gate[i]), x[i], total);
  }
  out[static_cast<size_t>(at.row) * width + at.column] = div32(total, static_cast<float>(streams));
}

// A thread four neighbouring values; `width` is a multiple of them.
__global__ void stream_write(const int* live, const float* residual, const float* y, const float* inject, float* out, int width,
                             int streams) {
  dependency_wait();
  dependency_launch();
  const Place at(live, width / 4);
  if (!at.live) return;
  const float4* from = reinterpret_cast<const float4*>(residual);
  float4* to = reinterpret_cast<float4*>(out);
  const float4 v = reinterpret_cast<const float4*>(y)[static_cast<size_t>(at.row) * (width / 4) + at.column];
  const auto place = [&](int c) { return (static_cast<size_t>(at.row) * streams + c) * (width / 4) + at.column; };
  for (int first = 0; first < streams; first += kTogether) {
    float4 old[kTogether];  // all loads come first: none passes a store, or a division's branches
    float weight[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const int c = min(first + j, streams - 1);
      weight[j] = inject[at.row * streams + c], old[j] = from[place(c)];
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) weight[j] = 2.0f * sigmoid32(div32(weight[j], static_cast<float>(streams)));
#pragma unroll
    for (int j = 0; j < kTogether; ++j)
      if (first + j < streams)
        to[place(first + j)] = {fma32(weight[j], v.x, old[j].x), fma32(weight[j], v.y, old[j].y), fma32(weight[j], v.z, old[j].z),
                                fma32(weight[j], v.w, old[j].w)};
  }
}

// out = fma(weight_r, row r of experts, out), ranks ascending from +0.
__global__ void combine(const int* live, const float* expert_rows, const float* weights, float* out, int width, int k) {
  dependency_wait();
  dependency_launch();
  const Place at(live, width);
  if (!at.live) return;
  float total = 0.0f;
  for (int r = 0; r < k; ++r)
    total = combine_step(weights[at.row * k + r], expert_rows[(static_cast<size_t>(at.row) * k + r) * width + at.column], total);
  out[static_cast<size_t>(at.row) * width + at.column] = total;
}

// x + sigmoid(gate) * y, the gate one value a row. A thread four neighbouring values; `width` is a multiple of them.
__global__ void gated_add(const int* live, const float* x, const float* y, const float* gate, float* out, int width) {
  dependency_wait();
  dependency_launch();
  const Place at(live, width / 4);
  if (!at.live) return;
  const size_t i = static_cast<size_t>(at.row) * (width / 4) + at.column;
  const float4 v = reinterpret_cast<const float4*>(y)[i], old = reinterpret_cast<const float4*>(x)[i];
  const float g = sigmoid32(gate[at.row]);
  reinterpret_cast<float4*>(out)[i] = {fma32(g, v.x, old.x), fma32(g, v.y, old.y), fma32(g, v.z, old.z), fma32(g, v.w, old.w)};
}

}  // extern "C"
