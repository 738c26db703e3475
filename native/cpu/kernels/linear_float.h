// One row of a float weight times up to 16 activation rows, in 32 lanes over k and a tree.
#pragma once
#include "cpu/kernels/kernel.h"
#include "strata/quants.h"

namespace strata::STRATA_LEVEL {

constexpr int kFloatChunk = 512;  // weight values made float at a time
constexpr int kFloatRows = 16;    // rows whose lanes are kept while a weight row is read

STRATA_HD bool is_float_type(QuantType type) {
  return type == QuantType::F32 || type == QuantType::F16 || type == QuantType::BF16;
}
STRATA_HD int64_t float_row_bytes(QuantType type, int64_t k) { return k * (type == QuantType::F32 ? 4 : 2); }

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

// y[r] = sum over k of weight[k] x_row(r)[k], r < rows.
template <class Input>
STRATA_HD void float_row_product(QuantType type, const uint8_t* weight, int64_t k, int64_t rows, Input&& x_row,
                                 float* y) {
  alignas(64) float acc[kFloatRows][kLanes], buffer[kFloatChunk];
  memset(acc, 0, static_cast<size_t>(rows) * sizeof(acc[0]));
  for (int64_t at = 0; at < k; at += kFloatChunk) {
    const int64_t count = k - at < kFloatChunk ? k - at : kFloatChunk;
    const float* w = chunk_floats(type, weight, at, count, buffer);
    for (int64_t r = 0; r < rows; ++r) lanes_fma(w, x_row(r) + at, count, acc[r]);
  }
  for (int64_t r = 0; r < rows; ++r) y[r] = tree_sum(acc[r]);
}

}  // namespace strata::STRATA_LEVEL
