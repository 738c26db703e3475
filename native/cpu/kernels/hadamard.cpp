// hadamard: every `group` values of a row times the Hadamard matrix in natural order, then times a constant.
// ptr: num_rows, x, out; dim: width, group (a power of two up to 64); scalar: factor.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

static constexpr int kMaxGroup = 64;

// Sums and differences of values `half` apart, for half = 1, 2, 4, .. group / 2.
static void turn(float* __restrict x, int group) {
  for (int half = 1; half < group; half *= 2)
    for (int begin = 0; begin < group; begin += 2 * half)
      for (int i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
}

void hadamard(const Op& op, int thread, int threads) {
  const int64_t group = op.dim[1];
  if (group > kMaxGroup) return op.fault(kFaultRange);
  const Range units = part(live_rows(op, 0) * op.dim[0] / group, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    alignas(64) float values[kMaxGroup];
    memcpy(values, op.at<const float>(1) + u * group, static_cast<size_t>(group) * sizeof(float));
    turn(values, static_cast<int>(group));
    float* out = op.at<float>(2) + u * group;
    for (int64_t i = 0; i < group; ++i) out[i] = values[i] * op.scalar[0];
  }
}

}  // namespace strata::STRATA_LEVEL
