// Waiting for what the host writes to mapped memory (native/include/strata/tiers.h); bounded.
#pragma once

#include "op.cuh"
#include "strata/tiers.h"

namespace strata {

// By one thread: until *flag, counted up by its writer, has reached `value`. False at once where the step is void already; false and
// kFaultWait after `limit_ns`. Whoever waits goes on with whatever is there: the step's results are not used.
__device__ __forceinline__ bool wait_for_host(const uint32_t* flag, uint32_t value, uint64_t limit_ns, uint32_t* faults) {
  const uint64_t start = global_timer();
  while (static_cast<int32_t>(load_acquire_system(flag) - value) < 0) {
    if (load_acquire_system(faults + kFaultWait) != 0) return false;
    if (global_timer() - start > limit_ns) {
      report(faults, kFaultWait);
      return false;
    }
    __nanosleep(100);
  }
  return true;
}

}  // namespace strata
