// linear_some: out[r, ids[j]] = sum over k of weight[ids[j], k] x[r, k] for quantised weights; other columns stay.
// ptr: num_rows, codes int8 [rows, k], scales float [rows, k / 32], sums int16 [rows, k / 16], weight, num_ids, ids int32,
// out [rows, n]; dim: type_id, k, n.
#include <alloca.h>

#include "cpu/kernels/linear_rows.h"

namespace strata::STRATA_LEVEL {

static constexpr int64_t kGathered = 64;           // weight rows copied side by side
static constexpr int64_t kGatherBytes = 256 << 10;  // of a worker's stack
static constexpr int64_t kSomeRows = 32;

void linear_some(const Op& op, int thread, int threads) {
  const auto type = static_cast<QuantType>(op.dim[0]);
  const int64_t k = op.dim[1], n = op.dim[2], live = live_rows(op, 0), row_bytes = quantised_row_bytes(type, k);
  const int32_t* ids = op.at<const int32_t>(6);
  const QuantisedRows x{k / kBlock, op.at<const int8_t>(1), op.at<const float>(2), op.at<const int16_t>(3)};
  if (row_bytes == 0 || live > kSomeRows) return op.fault(kFaultRange);
  const int64_t fitting = kGatherBytes / row_bytes / kFeatureGrain * kFeatureGrain;
  const int64_t tile = fitting < kFeatureGrain ? kFeatureGrain : fitting > kGathered ? kGathered : fitting;
  uint8_t* gathered = static_cast<uint8_t*>(alloca(static_cast<size_t>(tile * row_bytes + 64)));
  float y[kSomeRows * kGathered];
  const Range mine = part(*op.at<const int32_t>(5), kFeatureGrain, thread, threads);
  for (int64_t j = mine.begin; j < mine.end; j += tile) {
    const int64_t count = mine.end - j < tile ? mine.end - j : tile;
    bool inside = true;
    for (int64_t i = 0; i < count; ++i) inside = inside && ids[j + i] >= 0 && ids[j + i] < n;
    if (!inside) return op.fault(kFaultRange);
    for (int64_t i = 0; i < count; ++i)
      memcpy(gathered + i * row_bytes, op.at<const uint8_t>(4) + ids[j + i] * row_bytes, static_cast<size_t>(row_bytes));
    op.fault(linear_rows(type, x, nullptr, live, gathered, count, y, tile));
    for (int64_t r = 0; r < live; ++r)
      for (int64_t i = 0; i < count; ++i) op.at<float>(7)[r * n + ids[j + i]] = y[r * tile + i];
  }
}

}  // namespace strata::STRATA_LEVEL
