// Packed products of formats whose codes are entries of a grid.
#include "cpu/kernels/decode_grid4.h"
#include "cpu/kernels/tile_product.h"

#if STRATA_SIMD
namespace strata::STRATA_LEVEL {

Fault linear_grid(QuantType type, const RowsProduct& p) {
  switch (type) {
    case QuantType::IQ1_S: return product<QuantType::IQ1_S>(p) ? kFaultNone : kFaultMemory;
    case QuantType::IQ1_M: return product<QuantType::IQ1_M>(p) ? kFaultNone : kFaultMemory;
    case QuantType::IQ2_XXS: return product<QuantType::IQ2_XXS>(p) ? kFaultNone : kFaultMemory;
    case QuantType::IQ2_XS: return product<QuantType::IQ2_XS>(p) ? kFaultNone : kFaultMemory;
    case QuantType::IQ2_S: return product<QuantType::IQ2_S>(p) ? kFaultNone : kFaultMemory;
    case QuantType::IQ3_XXS: return product<QuantType::IQ3_XXS>(p) ? kFaultNone : kFaultMemory;
    case QuantType::IQ3_S: return product<QuantType::IQ3_S>(p) ? kFaultNone : kFaultMemory;
    default: return kFaultRange;
  }
}

}  // namespace strata::STRATA_LEVEL
#endif
