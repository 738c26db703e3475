// rms_norm: out = x / sqrt(mean(x^2) + eps) * weight, for each of the `pieces` of a row alone.
// ptr: num_rows, x, weight [width], out; dim: width, pieces; scalar: eps.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

void rms_norm(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0];
  const float eps = op.scalar[0];
  const float* __restrict weight = op.at<const float>(2);
  const Range pieces = part(live_rows(op, 0) * op.dim[1], 1, thread, threads);
  for (int64_t r = pieces.begin; r < pieces.end; ++r) {
    const float* x = op.at<const float>(1) + r * width;
    float* out = op.at<float>(3) + r * width;
    float acc[kLanes] = {};
    lanes_fma(x, x, width, acc);
    const float mean = div32(tree_sum(acc), static_cast<float>(width));
    const float inverse = div32(1.0f, sqrt32(mean + eps));
    for (int64_t i = 0; i < width; ++i) out[i] = (x[i] * inverse) * weight[i];
  }
}

}  // namespace strata::STRATA_LEVEL
