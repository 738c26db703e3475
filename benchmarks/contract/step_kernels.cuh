// Entry points of the step forms for the experiments and the tests.
#pragma once

#include "step.cuh"

using namespace strata;

extern "C" {

#define STRATA_MAP(i) \
  __global__ void map##i(const float* x, size_t n, float* y) { map<i>(x, n, y); }
STRATA_MAP(0) STRATA_MAP(1) STRATA_MAP(2) STRATA_MAP(3) STRATA_MAP(4)

__global__ void quantize_rows(const float* x, int blocks, int8_t* q, float* d, int16_t* s) { quantize(x, blocks, q, d, s); }

__global__ void norm_rows(const float* x, const float* w, int rows, int width, float eps, float* y) {
  rms_norm(x, w, rows, width, eps, y);
}

__global__ void topk_rows(const float* logits, int n, int k, int renormalise, int* ids, float* weights) {
  int id;
  float weight;
  router_topk<16>(logits + static_cast<size_t>(blockIdx.x) * n, n, k, renormalise != 0, id, weight);
  if (lane_id() < k) ids[blockIdx.x * k + lane_id()] = id, weights[blockIdx.x * k + lane_id()] = weight;
}

// Grid (splits, heads); k and v [cells][head_dim] shared by all heads.
__global__ void attention_splits(const float* q, const float* k, const float* v, int head_dim, int cells, float scale, float* m,
                                 float* l, float* o) {
  const int s = blockIdx.x, h = blockIdx.y, at = h * gridDim.x + s, begin = s * kAttentionSplit;
  const size_t first = static_cast<size_t>(begin) * head_dim;
  attention_split_step(q + h * head_dim, k + first, v + first, head_dim, head_dim, min(kAttentionSplit, cells - begin), scale, m + at,
                       l + at, o + static_cast<size_t>(at) * head_dim);
}

__global__ void attention_heads(const float* m, const float* l, const float* o, int splits, int head_dim, float* out) {
  const int h = blockIdx.x;
  attention_combine(m + h * splits, l + h * splits, o + static_cast<size_t>(h) * splits * head_dim, splits, head_dim,
                    out + h * head_dim);
}

// Grid (128 / warps, heads): state [head][v][k], k, q [head][128], v [head][128], decay and beta [head].
__global__ void delta_heads(float* state, const float* k, const float* q, const float* v, const float* decay, const float* beta, float* out) {
  const int h = blockIdx.y, column = blockIdx.x * (blockDim.x / 32) + warp_id();
  const float o = delta_step<128>(state + (static_cast<size_t>(h) * 128 + column) * 128, k + h * 128, q + h * 128, v[h * 128 + column],
                                  decay[h], beta[h]);
  if (lane_id() == 0) out[h * 128 + column] = o;
}

}  // extern "C"
