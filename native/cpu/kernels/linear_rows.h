// The one product of quantised weights that operators call: linear_q with all of a weight, experts with their rows.
#pragma once
#include "cpu/kernels/kernel.h"
#include "strata/quants.h"

namespace strata::STRATA_LEVEL {

constexpr int kFeatureGrain = 16;  // cut a weight's features at multiples of this: they are decoded together

// Quantised activations: codes [rows, 32 blocks], scales [rows, blocks], sums of codes per 16 [rows, 2 blocks].
struct QuantisedRows {
  int64_t blocks;
  const int8_t* codes;
  const float* scales;
  const int16_t* sums;
};

// out[i * stride + f] = weight row f . activation row index[i] (row i without index), for i < rows, f < features, in the
// contract's order. `weight` is the first of those weight rows; rows lie one after another. A call costs about as much
// as 4 features beside its product: give it as many features as there are. `after`: what this thread reads next, which
// is brought near meanwhile; null: what follows in memory. kFaultRange: a type that is not quantised.
Fault linear_rows(QuantType type, const QuantisedRows& x, const int32_t* index, int64_t rows, const uint8_t* weight,
                  int64_t features, float* out, int64_t stride, const uint8_t* after = nullptr);

// The same as a record, by families of formats; kFaultRange: another family's type.
struct RowsProduct {
  QuantisedRows x;
  const int32_t* index;
  int64_t rows;
  const uint8_t* weight;
  int64_t features;
  float* out;
  int64_t stride;
  const uint8_t* after;
};
Fault linear_simple(QuantType type, const RowsProduct& p);
Fault linear_k(QuantType type, const RowsProduct& p);
Fault linear_grid(QuantType type, const RowsProduct& p);

// Bytes of a weight row of k values; 0 for a type that is not quantised.
STRATA_HD int64_t quantised_row_bytes(QuantType type, int64_t k) {
  switch (type) {
#define X(name, id, values, bytes, has_min, halves, scale16) \
  case QuantType::name:                                      \
    return k / values * bytes;
    STRATA_QUANTISED_TYPES(X)
#undef X
    default:
      return 0;
  }
}

}  // namespace strata::STRATA_LEVEL
