// linear_q: out[r, n] = sum over k of weight[n, k] x[r, k] for quantised weights and int8 activations.
// ptr: num_rows, codes int8 [rows, k], scales float [rows, k / 32], sums int16 [rows, k / 16], weight, out [rows, n];
// dim: type_id, k, n. Order of sums: docs/contract.md.
#include "cpu/kernels/linear_rows.h"

namespace strata::STRATA_LEVEL {

static constexpr int64_t kRowGrain = 128;  // rows that pay for decoding the weight again

void linear_q(const Op& op, int thread, int threads) {
  const auto type = static_cast<QuantType>(op.dim[0]);
  const int64_t k = op.dim[1], n = op.dim[2];
  const QuantisedRows x{k / kBlock, op.at<const int8_t>(1), op.at<const float>(2), op.at<const int16_t>(3)};
  const int64_t row_bytes = quantised_row_bytes(type, k), live = live_rows(op, 0);
  // Many rows are cut too: each thread then prepares its own rows alone.
  int across = threads;
  while (across > 1 && (threads % across != 0 || live < kRowGrain * across)) --across;
  const Range rows = part(live, 1, thread % across, across);
  const Range features = part(n, kFeatureGrain, thread / across, threads / across);
  const QuantisedRows mine{x.blocks, x.codes + rows.begin * k, x.scales + rows.begin * x.blocks,
                           x.sums + rows.begin * x.blocks * 2};
  op.fault(linear_rows(type, mine, nullptr, rows.end - rows.begin, op.at<const uint8_t>(4) + features.begin * row_bytes,
                       features.end - features.begin, op.at<float>(5) + rows.begin * n + features.begin, n));
}

}  // namespace strata::STRATA_LEVEL
