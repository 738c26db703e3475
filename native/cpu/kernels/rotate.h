// RMS norm and multi-axis rotary embedding of one head.
#pragma once
#include "cpu/kernels/groups.h"

namespace strata::STRATA_LEVEL {

struct Rotary {
  const float* table;   // [max_positions, pairs, 2]: cos, sin
  const int32_t* axes;  // [pairs], 0 to 2
  int64_t pairs, max_positions;

  bool valid(const int32_t* positions) const {
    for (int i = 0; i < 3; ++i)
      if (positions[i] < 0 || positions[i] >= max_positions) return false;
    return true;
  }
};

STRATA_HD void norm_rotate(const float* x, const float* weight, int64_t dim, float eps, const Rotary& rotary,
                           const int32_t* positions, float* out) {
  const float inverse = norm_inverse(x, dim, eps);
  for (int64_t i = 0; i < dim; ++i) out[i] = (x[i] * inverse) * weight[i];
  for (int64_t i = 0; i < rotary.pairs; ++i) {
    const float* angle = rotary.table + (positions[rotary.axes[i]] * rotary.pairs + i) * 2;
    const float a = out[i], b = out[i + rotary.pairs];
    out[i] = fma32(a, angle[0], -(b * angle[1]));
    out[i + rotary.pairs] = fma32(b, angle[0], a * angle[1]);
  }
}

}  // namespace strata::STRATA_LEVEL
