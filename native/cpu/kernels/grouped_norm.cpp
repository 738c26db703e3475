// grouped_norm: RMS norm over each of `groups` slices of a row, the weight as wide as the row.
// ptr: num_rows, x, weight, out; dim: width, groups; scalar: eps.
#include "cpu/kernels/groups.h"

namespace strata::STRATA_LEVEL {

void grouped_norm(const Op& op, int thread, int threads) {
  const int64_t groups = op.dim[1], slice = op.dim[0] / groups;
  const Range units = part(live_rows(op, 0) * groups, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const float* x = op.at<const float>(1) + u * slice;
    const float* weight = op.at<const float>(2) + u % groups * slice;
    float* out = op.at<float>(3) + u * slice;
    const float inverse = norm_inverse(x, slice, op.scalar[0]);
    for (int64_t i = 0; i < slice; ++i) out[i] = (x[i] * inverse) * weight[i];
  }
}

}  // namespace strata::STRATA_LEVEL
