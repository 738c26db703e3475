// linear_q: out[r, n] = sum over k of weight[n, k] x[r, k] for quantised weights and int8 activations.
// ptr: num_rows, codes int8 [rows, k], scales float [rows, k / 32], sums int16 [rows, k / 16], weight, out [rows, n];
// dim: type_id, k, n. Order of sums: docs/contract.md.
#include "cpu/kernels/linear_rows.h"

namespace strata::STRATA_LEVEL {

void linear_q(const Op& op, int thread, int threads) {
  const auto type = static_cast<QuantType>(op.dim[0]);
  const int64_t k = op.dim[1], n = op.dim[2];
  const QuantisedRows x{k / kBlock, op.at<const int8_t>(1), op.at<const float>(2), op.at<const int16_t>(3)};
  const int64_t row_bytes = quantised_row_bytes(type, k);
  const Range features = part(n, kFeatureGrain, thread, threads);
  op.fault(linear_rows(type, x, nullptr, live_rows(op, 0), op.at<const uint8_t>(4) + features.begin * row_bytes,
                       features.end - features.begin, op.at<float>(5) + features.begin, n));
}

}  // namespace strata::STRATA_LEVEL
