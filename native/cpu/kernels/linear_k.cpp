// Packed products of formats with blocks of 256 values in bit fields.
#include "cpu/kernels/decode_k.h"
#include "cpu/kernels/tile_product.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

Fault linear_k(QuantType type, const RowsProduct& p) {
  switch (type) {
    case QuantType::Q2_K: return product<QuantType::Q2_K>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q3_K: return product<QuantType::Q3_K>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q4_K: return product<QuantType::Q4_K>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q5_K: return product<QuantType::Q5_K>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q6_K: return product<QuantType::Q6_K>(p) ? kFaultNone : kFaultMemory;
    case QuantType::IQ4_XS: return product<QuantType::IQ4_XS>(p) ? kFaultNone : kFaultMemory;
    case QuantType::TQ1_0: return product<QuantType::TQ1_0>(p) ? kFaultNone : kFaultMemory;
    case QuantType::TQ2_0: return product<QuantType::TQ2_0>(p) ? kFaultNone : kFaultMemory;
    default: return kFaultRange;
  }
}

}  // namespace strata::STRATA_LEVEL
#endif
