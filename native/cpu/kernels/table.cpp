// This instruction set's kernels. Constant data only: nothing here may run on a processor that lacks the set.
#include "cpu/kernels/kernel.h"

#define STRATA_STRING(x) #x
#define STRATA_NAME(x) STRATA_STRING(x)

namespace strata::STRATA_LEVEL {

#define STRATA_ENTRY(name, ptrs, dims, scalars) {#name, name, ptrs, dims, scalars},
static constexpr KernelEntry entries[] = {STRATA_KERNELS(STRATA_ENTRY)};
#undef STRATA_ENTRY

extern const KernelTable table;
constexpr KernelTable table = {STRATA_NAME(STRATA_LEVEL), entries, sizeof(entries) / sizeof(entries[0])};

}  // namespace strata::STRATA_LEVEL
