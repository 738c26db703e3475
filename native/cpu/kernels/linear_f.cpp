// linear_f: out[r, n] = sum over k of weight[n, k] x[r, k] for float weights, in 32 lanes by k and a tree.
// ptr: num_rows, x float [rows, k], weight [n, k], out float [rows, n]; dim: type_id, k, n.
#include "cpu/kernels/linear_float.h"

namespace strata::STRATA_LEVEL {

void linear_f(const Op& op, int thread, int threads) {
  const auto type = static_cast<QuantType>(op.dim[0]);
  const int64_t k = op.dim[1], n = op.dim[2], live = live_rows(op, 0);
  if (!is_float_type(type)) return op.fault(kFaultRange);
  const int64_t row_bytes = float_row_bytes(type, k);
  const Range features = part(n, 16, thread, threads);
  float y[kFloatRows];
  for (int64_t tile = 0; tile < live; tile += kFloatRows) {
    const int64_t rows = live - tile < kFloatRows ? live - tile : kFloatRows;
    const float* x = op.at<const float>(1) + tile * k;
    for (int64_t f = features.begin; f < features.end; ++f) {
      float_row_product(type, op.at<const uint8_t>(2) + f * row_bytes, k, rows, [&](int64_t r) { return x + r * k; }, y);
      for (int64_t r = 0; r < rows; ++r) op.at<float>(3)[(tile + r) * n + f] = y[r];
    }
  }
}

}  // namespace strata::STRATA_LEVEL
