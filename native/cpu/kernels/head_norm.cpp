// head_norm_rope: RMS norm of each head, then rotary embedding of its first `rotary` values; pair i is (i, i + rotary
// / 2) and turns by the row's position on axis axes[i].
// ptr: num_rows, positions int32 [rows, 3], table float [max_positions, rotary / 2, 2] (cos, sin), axes int32, x [rows,
// heads * stride], weight [head_dim], out [rows, heads * head_dim].
// dim: heads, head_dim, stride, rotary, max_positions; scalar: eps.
#include "cpu/kernels/rotate.h"

namespace strata::STRATA_LEVEL {

void head_norm_rope(const Op& op, int thread, int threads) {
  const int64_t heads = op.dim[0], head_dim = op.dim[1], stride = op.dim[2];
  const Rotary rotary{op.at<const float>(2), op.at<const int32_t>(3), op.dim[3] / 2, op.dim[4]};
  const Range units = part(live_rows(op, 0) * heads, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int32_t* positions = op.at<const int32_t>(1) + u / heads * 3;
    const float* x = op.at<const float>(4) + u * stride;
    float* out = op.at<float>(6) + u * head_dim;
    if (!rotary.valid(positions)) {
      op.fault(kFaultRange);
      continue;
    }
    norm_rotate(x, op.at<const float>(5), head_dim, op.scalar[0], rotary, positions, out);
  }
}

}  // namespace strata::STRATA_LEVEL
