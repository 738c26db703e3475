// rope: rotates pairs of each head by the angles of the row's position; values from `rotary` on are copied.
// ptr: num_rows, positions int32, table float [max_positions, rotary / 2, 2] (cos, sin), x, out (may be x).
// dim: heads, head_dim, rotary, style (0: pairs 2i, 2i + 1; 1: pairs i, i + rotary / 2), max_positions.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

void rope(const Op& op, int thread, int threads) {
  const int64_t heads = op.dim[0], head_dim = op.dim[1], rotary = op.dim[2], half = rotary / 2;
  const int64_t pair_step = op.dim[3] == 0 ? 2 : 1, partner = op.dim[3] == 0 ? 1 : half;
  const Range units = part(live_rows(op, 0) * heads, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t position = op.at<const int32_t>(1)[u / heads];
    if (position < 0 || position >= op.dim[4]) {
      op.fault(kFaultRange);
      continue;
    }
    const float* angle = op.at<const float>(2) + position * rotary;
    const float* x = op.at<const float>(3) + u * head_dim;
    float* out = op.at<float>(4) + u * head_dim;
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i * pair_step], b = x[i * pair_step + partner];
      const float cosine = angle[2 * i], sine = angle[2 * i + 1];
      out[i * pair_step] = fma32(a, cosine, -(b * sine));
      out[i * pair_step + partner] = fma32(b, cosine, a * sine);
    }
    for (int64_t i = rotary; i < head_dim; ++i) out[i] = x[i];
  }
}

}  // namespace strata::STRATA_LEVEL
