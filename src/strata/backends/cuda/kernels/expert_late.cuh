// Rows that CPU workers compute: waiting for them (strata/tiers.h, the mailbox).
#pragma once

#include "op.cuh"
#include "strata/tiers_gpu.h"

namespace strata {

constexpr int kTierFaultIndex = 4;  // native/cpu/op.h: the faults of the tiers come after the others

// Why the step is void, for the host.
__device__ __forceinline__ void tell_faults(const tiers::ExpertTier& t, uint32_t* faults) {
  for (int bit = 0; bit < 3; ++bit)
    if ((*const_cast<volatile uint32_t*>(&t.state->fault) >> bit & 1u) != 0) faults[kTierFaultIndex + bit] = 1u;
}

// Whether the workers have answered item `item` of the list under way; false when the step is void: then nobody posts
// until it is over. One thread.
__device__ __forceinline__ bool take_item(const tiers::ExpertTier& t, uint32_t item, uint32_t* faults) {
  tiers::TierState* state = t.state;
  if (tiers::wait_for(t.box.served_items + item, state->posts, state->settings.limit_ns, &state->fault)) return true;
  state->busy = 1;
  tell_faults(t, faults);
  return false;
}

// Features [first, first + count) of the row of pair `pair`, in the place of what was computed, where the CPU has its expert. A warp.
__device__ __forceinline__ void take_late_row(const tiers::ExpertTier& t, int expert, int pair, int hidden, int first, int count, float* row,
                                              uint32_t* faults) {
  const uint32_t item = t.late[expert];
  if (item == 0) return;
  const int arrived = lane_id() == 0 ? take_item(t, item - 1, faults) : 0;
  if (__shfl_sync(kFullWarp, arrived, 0) == 0) return;
  __syncwarp();
  const float* from = t.box.out + static_cast<size_t>(pair) * hidden + first;
  for (int f = lane_id(); f < count && first + f < hidden; f += 32) row[f] = from[f];
}

}  // namespace strata
