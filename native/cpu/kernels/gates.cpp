// sigmoid_gate: out = x * sigmoid(gate), head h of a gate row beginning at h * stride + offset.
// ptr: num_rows, x [rows, heads * head_dim], gate [rows, heads * stride], out; dim: heads, head_dim, stride, offset.
// gated_norm: out = RMS norm of each head of x, times sigmoid(z) or, where silu is 1, silu(z).
// ptr: num_rows, x, z, weight [head_dim], out; dim: heads, head_dim, silu; scalar: eps.
#include "cpu/kernels/groups.h"

namespace strata::STRATA_LEVEL {

void sigmoid_gate(const Op& op, int thread, int threads) {
  const int64_t head_dim = op.dim[1];
  const Range units = part(live_rows(op, 0) * op.dim[0], 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const float* x = op.at<const float>(1) + u * head_dim;
    const float* gate = op.at<const float>(2) + u * op.dim[2] + op.dim[3];
    float* out = op.at<float>(3) + u * head_dim;
    for (int64_t i = 0; i < head_dim; ++i) out[i] = x[i] * sigmoid32(gate[i]);
  }
}

void gated_norm(const Op& op, int thread, int threads) {
  const int64_t head_dim = op.dim[1];
  const bool silu = op.dim[2] != 0;
  const float* weight = op.at<const float>(3);
  const Range units = part(live_rows(op, 0) * op.dim[0], 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const float *x = op.at<const float>(1) + u * head_dim, *z = op.at<const float>(2) + u * head_dim;
    float* out = op.at<float>(4) + u * head_dim;
    const float inverse = norm_inverse(x, head_dim, op.scalar[0]);
    for (int64_t i = 0; i < head_dim; ++i) out[i] = ((x[i] * inverse) * weight[i]) * (silu ? silu32(z[i]) : sigmoid32(z[i]));
  }
}

}  // namespace strata::STRATA_LEVEL
