// rope: rotates pairs of each head by the angles of the row's position; values from `rotary` on are copied.
// ptr: num_rows, positions int32, table float [max_positions, rotary / 2, 2] (cos, sin), x, out (may be x).
// dim: heads, head_dim, rotary, style (0: pairs 2i, 2i + 1; 1: pairs i, i + rotary / 2), max_positions.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

constexpr int kPairs = 16;  // rotated together: arrays of a length known to the compiler, which x and out cannot overlap

// `n` pairs (x[i * step], x[i * step + partner]), n at most kPairs. angle: cos, sin of each.
template <int step> STRATA_HD void rotate(const float* x, const float* angle, int64_t partner, int n, float* out) {
  alignas(64) float a[kPairs], b[kPairs], cosine[kPairs], sine[kPairs];
  for (int i = 0; i < n; ++i) a[i] = x[i * step], b[i] = x[i * step + partner];
  for (int i = 0; i < n; ++i) cosine[i] = angle[2 * i], sine[i] = angle[2 * i + 1];
  for (int i = 0; i < n; ++i) {
    const float first = fma32(a[i], cosine[i], -(b[i] * sine[i]));
    b[i] = fma32(b[i], cosine[i], a[i] * sine[i]);
    a[i] = first;
  }
  for (int i = 0; i < n; ++i) out[i * step] = a[i], out[i * step + partner] = b[i];
}

template <int step> STRATA_HD void rotate_head(const float* x, const float* angle, int64_t half, float* out) {
  const int64_t partner = step == 2 ? 1 : half;
  int64_t i = 0;
  for (; i + kPairs <= half; i += kPairs) rotate<step>(x + i * step, angle + 2 * i, partner, kPairs, out + i * step);
  if (i < half) rotate<step>(x + i * step, angle + 2 * i, partner, static_cast<int>(half - i), out + i * step);
}

void rope(const Op& op, int thread, int threads) {
  const int64_t heads = op.dim[0], head_dim = op.dim[1], rotary = op.dim[2], half = rotary / 2;
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
    if (op.dim[3] == 0)
      rotate_head<2>(x, angle, half, out);
    else
      rotate_head<1>(x, angle, half, out);
    for (int64_t i = rotary; i < head_dim; ++i) out[i] = x[i];
  }
}

}  // namespace strata::STRATA_LEVEL
