// The contract's functions over arrays, so that tests and mirrors in other languages can compare bits.
// map_NAME: ptr in, out; dim n. map_fma32: ptr a, b, c, out; dim n.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

#define STRATA_MAP(name, from, to)                                       \
  void map_##name(const Op& op, int thread, int threads) {               \
    const Range range = part(op.dim[0], 64, thread, threads);            \
    const from* in = op.at<const from>(0);                               \
    to* out = op.at<to>(1);                                              \
    for (int64_t i = range.begin; i < range.end; ++i) out[i] = name(in[i]); \
  }
STRATA_MAP(exp32, float, float)
STRATA_MAP(log32, float, float)
STRATA_MAP(softplus32, float, float)
STRATA_MAP(sigmoid32, float, float)
STRATA_MAP(silu32, float, float)
STRATA_MAP(half_float, uint16_t, float)
STRATA_MAP(float_half, float, uint16_t)
#undef STRATA_MAP

void map_fma32(const Op& op, int thread, int threads) {
  const Range range = part(op.dim[0], 64, thread, threads);
  const float *a = op.at<const float>(0), *b = op.at<const float>(1), *c = op.at<const float>(2);
  float* out = op.at<float>(3);
  for (int64_t i = range.begin; i < range.end; ++i) out[i] = fma32(a[i], b[i], c[i]);
}

}  // namespace strata::STRATA_LEVEL
