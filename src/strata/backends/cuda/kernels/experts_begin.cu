// The first nodes of a replay with experts in tiers: changes of the residency table (strata/tiers_gpu.h), then the copies
// that they ask for. Macros: expert_copy.cuh's; `begin_experts` reads none of them.
#include "expert_copy.cuh"

using namespace strata;
using namespace strata::tiers;

extern "C" {

// One thread block. `layer`: the first of the replay's. `step` 0: only the changes count, no step begins. `hold`, in mapped
// memory: while it is not 0, a prompt chunk reads what the table says, and changes wait.
__global__ void __launch_bounds__(kTileThreads) begin_experts(const ExpertTier* tier, int layer, int step, const volatile uint32_t* hold) {
  __shared__ ExpertTier t;
  __shared__ uint32_t count, taken;
  if (threadIdx.x == 0) t = *tier;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  TierState* state = t.state;
  if (threadIdx.x == 0) {
    taken = state->taken;
    count = tiers::load_acquire(&t.changes->written) - taken;
    if (count > kChangesAtOnce) count = kChangesAtOnce;
    if (hold != nullptr && *hold != 0) count = 0;
    *const_cast<volatile uint32_t*>(&t.changes->applied) = taken;  // the copies of those are over
  }
  __syncthreads();
  const uint32_t epoch = state->epoch + static_cast<uint32_t>(step);
  for (uint32_t i = threadIdx.x; i < count; i += kTileThreads) {
    const SlotChange c = t.changes->changes[(taken + i) % kChangeRing];
    state->list[i] = c;
    if (c.leaving >= 0) t.entries[c.leaving] = 0;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += kTileThreads) {
    const SlotChange c = state->list[i];
    if (c.coming < 0) continue;
    t.entries[c.coming] = make_entry(c.slot, epoch);
    const int l = c.coming / t.experts, e = c.coming % t.experts;
    for (int p = 0; p < 3; ++p) t.tables[(l * 3 + p) * static_cast<size_t>(t.experts) + e] = c.address + t.offsets[l * 4 + p];
  }
  if (threadIdx.x == 0) {
    state->taken = taken + count, state->count = count;
    if (step != 0) {
      state->counts[kVoidSteps] += state->fault != 0, state->counts[kWaitsExpired] += (state->fault & kWaitExpired) != 0;
      state->epoch = epoch, state->fault = 0;
      state->settings = *t.settings;
      const uint64_t now = global_timer(), took = now - state->begun;
      state->begun = now;
      if (trial_step(state->trials[0], 0, epoch, took) && state->settings.share < 0.0f) state->settings.copy_all = 1;
      const bool alone = trial_step(state->trials[1], 1, epoch, took);
      state->counts[kLookaheadHeld] += alone && state->settings.ahead != 0;
      if (alone) state->settings.ahead = 0;
      state->busy = tiers::load_acquire(&t.box.head->served) != state->posts;
      state->counts[tiers::kSteps] += 1;
      *const_cast<volatile uint32_t*>(&t.changes->epoch) = epoch;
    }
    state->copies_at[2 * layer] = state->copies;
  }
}

// The copies of the layers of one class: from the staging ring where it still has the expert, else from RAM.
__global__ void __launch_bounds__(kTileThreads) promote_experts(const ExpertTier* tier, int cls, int gate_bytes, int up_bytes,
                                                                int down_bytes) {
  __shared__ ExpertTier t;
  __shared__ int far[kChangesAtOnce], fars;
  if (threadIdx.x == 0) t = *tier;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  const PlaneBytes bytes{gate_bytes, up_bytes, down_bytes};
  TierState* state = t.state;
  const int count = static_cast<int>(state->count);
  if (count == 0) return;
  if (threadIdx.x == 0) fars = 0;
  for (int i = 0; i < count; ++i) {
    const SlotChange& c = state->list[i];
    if (c.coming < 0) continue;
    const int layer = c.coming / t.experts;
    if (t.classes[layer] != static_cast<uint32_t>(cls)) continue;
    const uint64_t n = t.staged[c.coming];
    if (n == 0 || state->copies - n >= t.places) {
      if (threadIdx.x == 0) far[fars++] = i;
      continue;
    }
    const uint4* from = reinterpret_cast<const uint4*>(t.ring + (n - 1) % t.places * t.place_bytes);
    uint4* to = reinterpret_cast<uint4*>(c.address);
    const int words = static_cast<int>(t.offsets[layer * 4 + 3] / 16);
    for (int w = blockIdx.x * kTileThreads + threadIdx.x; w < words; w += gridDim.x * kTileThreads) to[w] = from[w];
  }
  __syncthreads();
  const auto place = [&](int i, int p) {
    const SlotChange& c = state->list[far[i]];
    return c.address + t.offsets[c.coming / t.experts * 4 + p];
  };
  const auto source = [&](int i, int p) {
    const int coming = state->list[far[i]].coming;
    return t.sources[(coming / t.experts * 3 + p) * static_cast<size_t>(t.experts) + coming % t.experts];
  };
  copy_experts(blockIdx.x, gridDim.x, fars, bytes, state, source, place);
}

}  // extern "C"
