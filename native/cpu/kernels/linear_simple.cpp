// Packed products of formats with blocks of 32 and 64 values.
#include "cpu/kernels/decode_simple.h"
#include "cpu/kernels/tile_product.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

Fault linear_simple(QuantType type, const RowsProduct& p) {
  switch (type) {
    case QuantType::Q4_0: return product<QuantType::Q4_0>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q4_1: return product<QuantType::Q4_1>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q5_0: return product<QuantType::Q5_0>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q5_1: return product<QuantType::Q5_1>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q8_0: return product<QuantType::Q8_0>(p) ? kFaultNone : kFaultMemory;
    case QuantType::IQ4_NL: return product<QuantType::IQ4_NL>(p) ? kFaultNone : kFaultMemory;
    case QuantType::MXFP4: return product<QuantType::MXFP4>(p) ? kFaultNone : kFaultMemory;
    case QuantType::NVFP4: return product<QuantType::NVFP4>(p) ? kFaultNone : kFaultMemory;
    case QuantType::Q2_0: return product<QuantType::Q2_0>(p) ? kFaultNone : kFaultMemory;
    default: return kFaultRange;
  }
}

}  // namespace strata::STRATA_LEVEL
#endif
