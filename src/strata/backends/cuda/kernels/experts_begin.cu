// The first nodes of a replay with experts in tiers, and of some layers of it: changes of the residency table
// (strata/tiers_gpu.h), then the copies that they ask for. Macros: expert_copy.cuh's; `begin_experts` reads none of them.
#include "expert_copy.cuh"

using namespace strata;
using namespace strata::tiers;

namespace {

constexpr int kChunk = 32768, kChunkWords = kChunk / 16 / kTileThreads;  // bytes that a thread block copies at a time

// Words [first, first + kChunk / 16) below `words`, all loads before the stores.
__device__ __forceinline__ void copy_chunk(const uint4* from, uint4* to, int first, int words) {
  uint4 v[kChunkWords];
#pragma unroll
  for (int j = 0; j < kChunkWords; ++j) {
    const int w = first + j * kTileThreads + static_cast<int>(threadIdx.x);
    if (w < words) v[j] = from[w];
  }
#pragma unroll
  for (int j = 0; j < kChunkWords; ++j) {
    const int w = first + j * kTileThreads + static_cast<int>(threadIdx.x);
    if (w < words) to[w] = v[j];
  }
}

constexpr uint64_t kNotMine = ~uint64_t{0};

// Those of `count` changes that `wanted` names, in order. A warp.
template <class Wanted> __device__ __forceinline__ void list_changes(short* list, int* size, int count, Wanted wanted) {
  int found = 0;
  for (int begin = 0; begin < count; begin += 32) {
    const int i = begin + lane_id();
    const bool in = i < count && wanted(i);
    const uint32_t mask = __ballot_sync(kFullWarp, in);
    if (in) list[found + __popc(mask & ((1u << lane_id()) - 1u))] = static_cast<short>(i);
    found += __popc(mask);
  }
  if (lane_id() == 0) *size = found;
}

}  // namespace

extern "C" {

// One thread block. `layer`: the one that comes next. `step` 0: only the changes count, no step begins. `held`: layers
// whose experts a prompt chunk reads where the table says: the first change of those waits, and all after it.
__global__ void __launch_bounds__(kTileThreads) begin_experts(const ExpertTier* tier, int layer, int step, const HeldLayers* held) {
  __shared__ ExpertTier t;
  __shared__ uint32_t asked, count, taken;
  if (threadIdx.x == 0) t = *tier;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  TierState* state = t.state;
  if (threadIdx.x == 0) {
    taken = state->taken;
    asked = tiers::load_acquire(&t.changes->written) - taken;
    if (asked > kChangesAtOnce) asked = kChangesAtOnce;
    count = asked;
    *const_cast<volatile uint32_t*>(&t.changes->applied) = taken;  // the copies of those are over
  }
  __syncthreads();
  if (held != nullptr && held->count > 0) {
    for (uint32_t i = threadIdx.x; i < asked; i += kTileThreads)
      if (touches(t.changes->changes[(taken + i) % kChangeRing], *held, t.experts)) atomicMin(&count, i);
    __syncthreads();
  }
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
  __shared__ uint64_t number[kChangesAtOnce];  // of the copy in the ring; 0: none
  __shared__ short near[kChangesAtOnce], far[kChangesAtOnce];
  __shared__ int nears, fars;
  if (threadIdx.x == 0) t = *tier;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  TierState* state = t.state;
  const int count = static_cast<int>(state->count);
  if (count == 0) return;
  for (int i = threadIdx.x; i < count; i += kTileThreads) {
    const int coming = state->list[i].coming;
    const bool mine = coming >= 0 && t.classes[coming / t.experts] == static_cast<uint32_t>(cls);
    const uint64_t n = mine ? t.staged[coming] : 0;
    number[i] = !mine ? kNotMine : n != 0 && state->copies - n < t.places ? n : 0;
  }
  __syncthreads();
  if (warp_id() == 0) list_changes(near, &nears, count, [&](int i) { return number[i] != kNotMine && number[i] != 0; });
  if (warp_id() == 1) list_changes(far, &fars, count, [&](int i) { return number[i] == 0; });
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) state->counts[kPromotionsFromRam] += static_cast<uint64_t>(fars);
  const int chunks = static_cast<int>((t.place_bytes + kChunk - 1) / kChunk);
  for (int u = blockIdx.x; u < nears * chunks; u += gridDim.x) {
    const int i = near[u / chunks], first = u % chunks * (kChunk / 16);
    const SlotChange& c = state->list[i];
    const int words = static_cast<int>(t.offsets[c.coming / t.experts * 4 + 3] / 16);
    copy_chunk(reinterpret_cast<const uint4*>(t.ring + (number[i] - 1) % t.places * t.place_bytes), reinterpret_cast<uint4*>(c.address), first,
               words);
  }
  const PlaneBytes bytes{gate_bytes, up_bytes, down_bytes};
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
