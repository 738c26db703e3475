// linear_f: out[r, n] = sum over k of weight[n, k] x[r, k] for float weights, in 32 lanes by k and a tree.
// ptr: num_rows, x float [rows, k], weight [n, k], out float [rows, n]; dim: type_id, k, n.
#include "cpu/kernels/kernel.h"
#include "strata/quants.h"

namespace strata::STRATA_LEVEL {

static constexpr int kChunk = 512;   // weight values made float at a time
static constexpr int kTileRows = 16;  // rows whose lanes are kept while a weight row is read

STRATA_HD const float* chunk_floats(QuantType type, const uint8_t* row, int64_t k, int64_t n,
                                    float* __restrict buffer) {
  if (type == QuantType::F32) return reinterpret_cast<const float*>(row) + k;
  const uint16_t* __restrict half = reinterpret_cast<const uint16_t*>(row) + k;
  if (type == QuantType::F16)
    for (int64_t i = 0; i < n; ++i) buffer[i] = half_float(half[i]);
  else
    for (int64_t i = 0; i < n; ++i) buffer[i] = bf16_float(half[i]);
  return buffer;
}

void linear_f(const Op& op, int thread, int threads) {
  const auto type = static_cast<QuantType>(op.dim[0]);
  const int64_t k = op.dim[1], n = op.dim[2], live = live_rows(op, 0);
  const int64_t row_bytes = k * (type == QuantType::F32 ? 4 : 2);
  if (type != QuantType::F32 && type != QuantType::F16 && type != QuantType::BF16) return op.fault(kFaultRange);
  const Range features = part(n, 16, thread, threads);
  alignas(64) float acc[kTileRows][kLanes], buffer[kChunk];
  for (int64_t tile = 0; tile < live; tile += kTileRows) {
    const int64_t rows = live - tile < kTileRows ? live - tile : kTileRows;
    const float* x = op.at<const float>(1) + tile * k;
    for (int64_t f = features.begin; f < features.end; ++f) {
      memset(acc, 0, sizeof(acc));
      for (int64_t at = 0; at < k; at += kChunk) {
        const int64_t count = k - at < kChunk ? k - at : kChunk;
        const float* w = chunk_floats(type, op.at<const uint8_t>(2) + f * row_bytes, at, count, buffer);
        for (int64_t r = 0; r < rows; ++r) lanes_fma(w, x + r * k + at, count, acc[r]);
      }
      for (int64_t r = 0; r < rows; ++r) op.at<float>(3)[(tile + r) * n + f] = tree_sum(acc[r]);
    }
  }
}

}  // namespace strata::STRATA_LEVEL
