// unit_heads: x / sqrt(sum x^2 + 1e-6) of the first 2 * heads heads of a row, queries also times a scale.
// ptr: num_rows, x [rows, width], out [rows, 2 * heads * head_dim]; dim: heads, head_dim, width; scalar: scale.
// delta_gates: beta = sigmoid(b), g = rate * softplus(a + bias) per value head; packed > 0: b and a lie in one buffer,
// for each group of `packed` heads their b and then their a.
// ptr: num_rows, b, a, rate, bias, out [rows, 2 * heads]; dim: heads, packed.
#include "cpu/kernels/groups.h"

namespace strata::STRATA_LEVEL {

void unit_heads(const Op& op, int thread, int threads) {
  const int64_t heads = op.dim[0], head_dim = op.dim[1];
  const Range units = part(live_rows(op, 0) * 2 * heads, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t head = u % (2 * heads);
    const float* x = op.at<const float>(1) + u / (2 * heads) * op.dim[2] + head * head_dim;
    float* out = op.at<float>(2) + u * head_dim;
    const float inverse = div32(1.0f, sqrt32(lane_dot(x, x, head_dim) + 1e-6f));
    for (int64_t i = 0; i < head_dim; ++i) out[i] = x[i] * inverse;
    if (head < heads)
      for (int64_t i = 0; i < head_dim; ++i) out[i] *= op.scalar[0];
  }
}

void delta_gates(const Op& op, int thread, int threads) {
  const int64_t heads = op.dim[0], packed = op.dim[1];
  const Range units = part(live_rows(op, 0) * heads, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t row = u / heads, h = u % heads;
    const int64_t at = packed ? row * 2 * heads + h / packed * 2 * packed + h % packed : u;
    float* out = op.at<float>(5) + row * 2 * heads;
    out[h] = sigmoid32(op.at<const float>(1)[at]);
    out[heads + h] =
        op.at<const float>(3)[h] * softplus32(op.at<const float>(2)[at + packed] + op.at<const float>(4)[h]);
  }
}

}  // namespace strata::STRATA_LEVEL
