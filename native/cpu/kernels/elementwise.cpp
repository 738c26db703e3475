// Elementwise operators over the live rows; an output may be one of its inputs.
// add: ptr num_rows, a, b, out. add_bias: ptr num_rows, x, bias, out. silu_mul, gelu_mul: ptr num_rows, gate, up, out.
// scale: ptr num_rows, x, out; scalar: factor. All: dim width.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

static constexpr int64_t kGrain = 256;  // values: a cache line is never shared by two threads

void add(const Op& op, int thread, int threads) {
  const Range range = part(live_rows(op, 0) * op.dim[0], kGrain, thread, threads);
  const float *a = op.at<const float>(1), *b = op.at<const float>(2);
  float* out = op.at<float>(3);
  for (int64_t i = range.begin; i < range.end; ++i) out[i] = a[i] + b[i];
}

void add_bias(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0];
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  const float* bias = op.at<const float>(2);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = op.at<const float>(1) + r * width;
    float* out = op.at<float>(3) + r * width;
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] + bias[i];
  }
}

void silu_mul(const Op& op, int thread, int threads) {
  const Range range = part(live_rows(op, 0) * op.dim[0], kGrain, thread, threads);
  const float *gate = op.at<const float>(1), *up = op.at<const float>(2);
  float* out = op.at<float>(3);
  for (int64_t i = range.begin; i < range.end; ++i) out[i] = silu32(gate[i]) * up[i];
}

void gelu_mul(const Op& op, int thread, int threads) {
  const Range range = part(live_rows(op, 0) * op.dim[0], kGrain, thread, threads);
  const float *gate = op.at<const float>(1), *up = op.at<const float>(2);
  float* out = op.at<float>(3);
  for (int64_t i = range.begin; i < range.end; ++i) out[i] = gelu32(gate[i]) * up[i];
}

void scale(const Op& op, int thread, int threads) {
  const Range range = part(live_rows(op, 0) * op.dim[0], kGrain, thread, threads);
  const float* x = op.at<const float>(1);
  const float factor = op.scalar[0];
  float* out = op.at<float>(2);
  for (int64_t i = range.begin; i < range.end; ++i) out[i] = x[i] * factor;
}

}  // namespace strata::STRATA_LEVEL
