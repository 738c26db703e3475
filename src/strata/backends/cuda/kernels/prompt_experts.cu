// The experts that a prompt chunk needs and no slot has (backends/cuda/prompt_experts.py): a list for each layer, and copies
// of what it names to a ring of their own, from where the chunk's products read them. Slots of those layers stand still meanwhile.
// Macros: expert_copy.cuh's, STRATA_GROUPS (of kTileThreads that copy in a thread block, whose multiprocessor others do without: the more, the
// fewer multiprocessors). Only `copy_absent` reads them.
#include "expert_copy.cuh"
#include "prompt_ring.cuh"

using namespace strata;
using namespace strata::tiers;

extern "C" {

// One thread block. offsets: of the chunk's pairs by expert, so that only what they name is listed; null: everything.
__global__ void __launch_bounds__(kTileThreads) list_absent(const ExpertTier* tier, const PromptRing* prompts, const int* offsets, int layer) {
  __shared__ ExpertTier t;
  __shared__ PromptRing ring;
  __shared__ int counts[kTileThreads / 32], before[kTileThreads / 32], total;
  if (threadIdx.x == 0) t = *tier, ring = *prompts, total = 0;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  const size_t base = static_cast<size_t>(layer) * t.experts;
  Absent* list = ring.list(layer);
  const uint64_t taken = *ring.taken;
  for (int begin = 0; begin < t.experts; begin += kTileThreads) {
    const int e = begin + threadIdx.x;
    const bool in = e < t.experts;
    const bool held = in && entry_slot(t.entries[base + e]) >= 0;
    const bool wanted = in && !held && (offsets == nullptr || offsets[e + 1] > offsets[e]);
    const uint32_t mask = __ballot_sync(kFullWarp, wanted);
    if (lane_id() == 0) counts[warp_id()] = __popc(mask);
    __syncthreads();
    if (threadIdx.x == 0) {
      int sum = total;
      for (int w = 0; w < kTileThreads / 32; ++w) before[w] = sum, sum += counts[w];
      total = sum;
    }
    __syncthreads();
    const int at = before[warp_id()] + __popc(mask & ((1u << lane_id()) - 1u));
    if (wanted) list->experts()[at] = e;
    for (int p = 0; in && p < 3; ++p) {
      const size_t entry = static_cast<size_t>(layer * 3 + p) * t.experts + e;
      // What nobody needs has a place that can be read: kernels look before they know.
      ring.tables[entry] = held ? t.tables[entry] : wanted ? ring.place(taken + at) + t.offsets[layer * 4 + p] : t.zeros + t.offsets[layer * 4 + p];
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  list->count = total, list->first = taken;
  *ring.taken = taken + total;
  volatile uint64_t* seen = ring.counts;
  seen[0] = seen[0] + total, seen[1] = seen[1] + total * t.offsets[layer * 4 + 3];
}

// From here on, in stream order, changes of these layers wait (experts_begin.cu). One thread.
__global__ void hold_layers(HeldLayers* held, int first, int count) {
  dependency_wait();
  dependency_launch();
  held->first = first, held->count = count;
}

// Adds the pairs that a chunk gave each expert. One thread an expert.
__global__ void __launch_bounds__(kTileThreads) count_used(const PromptRing* prompts, const int* offsets, int layer, int experts) {
  dependency_wait();
  dependency_launch();
  const int e = blockIdx.x * kTileThreads + threadIdx.x;
  if (e < experts) prompts->used[static_cast<size_t>(layer) * experts + e] += static_cast<uint32_t>(offsets[e + 1] - offsets[e]);
}

// Copies of what is listed: part 0: what finds a place beside what layer `beside` still reads; 1: the rest; 2: all.
__global__ void __launch_bounds__(STRATA_GROUPS * kTileThreads) copy_absent(const ExpertTier* tier, const PromptRing* prompts, int layer, int beside,
                                                                            int part, int gate_bytes, int up_bytes, int down_bytes) {
  STRATA_DYNAMIC_SHARED(shared);  // a TileSpace a group
  __shared__ ExpertTier t;
  __shared__ PromptRing ring;
  __shared__ Barrier barriers[STRATA_GROUPS];
  if (threadIdx.x == 0) t = *tier, ring = *prompts;
  if (threadIdx.x < STRATA_GROUPS) barriers[threadIdx.x].init(kTileThreads);
  dependency_wait();
  dependency_launch();
  __syncthreads();
  Absent* list = ring.list(layer);
  const int room = part == 2 ? list->count : static_cast<int>(ring.places) - ring.list(beside)->count;
  const int middle = min(list->count, max(room, 0)), begin = part == 1 ? middle : 0, end = part == 1 ? list->count : middle;
  const PlaneBytes bytes{gate_bytes, up_bytes, down_bytes};
  const auto place = [&](int i, int p) { return ring.place(list->first + static_cast<uint64_t>(begin + i)) + t.offsets[layer * 4 + p]; };
  const auto source = [&](int i, int p) { return t.sources[static_cast<size_t>(layer * 3 + p) * t.experts + list->experts()[begin + i]]; };
  const int group = static_cast<int>(threadIdx.x) / kTileThreads;
  copy_tiles(reinterpret_cast<TileSpace*>(shared)[group], TileThreads(barriers + group), group * gridDim.x + blockIdx.x, STRATA_GROUPS * gridDim.x,
             end - begin, bytes, t.state, source, place);
}

}  // extern "C"
