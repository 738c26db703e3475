// linear_rows: packed tiles (AVX2, AVX-512), or the portable text for other processors.
#include "cpu/kernels/linear_rows.h"

#include "cpu/kernels/simd.h"

#if !STRATA_SIMD
#include "cpu/kernels/linear_tile.h"
#endif

namespace strata::STRATA_LEVEL {

Fault linear_rows(QuantType type, const QuantisedRows& x, const int32_t* index, int64_t rows, const uint8_t* weight,
                  int64_t features, float* out, int64_t stride, const uint8_t* after) {
#if STRATA_SIMD
  const RowsProduct p{x, index, rows, weight, features, out, stride, after};
  const Fault simple = linear_simple(type, p);
  if (simple != kFaultRange) return simple;
  const Fault k = linear_k(type, p);
  return k != kFaultRange ? k : linear_grid(type, p);
#else
  static_cast<void>(after);
  const bool known = with_quantised_format(type, [&]<QuantType T>() {
    portable_rows<T>({x.blocks, stride, x.codes, x.scales, x.sums, index, weight, out}, rows, features);
  });
  return known ? kFaultNone : kFaultRange;
#endif
}

}  // namespace strata::STRATA_LEVEL
