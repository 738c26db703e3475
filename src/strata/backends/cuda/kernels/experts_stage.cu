// What a layer's step needs of its experts before they are computed: who is chosen, who is where, and the copies of those
// that are missing (strata/tiers_gpu.h). Macros: expert_copy.cuh's, STRATA_EXPERTS, STRATA_TOP, STRATA_PAIRS (most pairs of a
// step), STRATA_CHOOSE (1: the router's choice is made here from its logits, as experts_step.cu makes it; 0: the pairs come
// sorted by expert), STRATA_RENORMALISE.
//
// Every thread block finds out the same and copies its share of tiles; the first one also writes down what was found, the last
// one tells it to the host.
#include "expert_copy.cuh"
#include "expert_late.cuh"
#include "mailbox_rows.cuh"
#include "topk.cuh"

using namespace strata;
using namespace strata::tiers;

namespace {

constexpr int kExperts = STRATA_EXPERTS, kTop = STRATA_TOP, kPairs = STRATA_PAIRS;
constexpr int kMost = kPairs < kExperts ? kPairs : kExperts;  // distinct experts
constexpr int kThreads = kTileThreads, kWarps = kThreads / 32;

enum Found : uint8_t { kUnused, kInSlot, kInRing, kToCopy, kToCompute };

struct Uses {
  int pairs[kExperts];  // of each expert
  uint8_t found[kExperts];
  short used[kMost], missed[kMost], copied[kMost], computed[kMost], rank[kMost];
  int num_used, num_missed, num_copied, num_computed;
#if STRATA_CHOOSE
  int ids[kPairs];
#endif
};

// Experts of [0, kExperts) that `wanted` names, ascending; by one warp.
template <class Wanted> __device__ __forceinline__ int compact(short* list, Wanted wanted) {
  int n = 0;
  for (int first = 0; first < kExperts; first += 32) {
    const int e = first + lane_id();
    const bool in = e < kExperts && wanted(e);
    const uint32_t mask = __ballot_sync(kFullWarp, in);
    if (in) list[n + __popc(mask & ((1u << lane_id()) - 1u))] = static_cast<short>(e);
    n += __popc(mask);
  }
  __syncwarp();
  return n;
}

struct Step {
  const int *pairs, *offsets;  // without STRATA_CHOOSE
  const float* logits;
  int rows;
};

__device__ __forceinline__ void count_pairs(Uses& u, const Step& s) {
#if STRATA_CHOOSE
  __shared__ __align__(16) uint32_t rooms_of_choice[kWarps][kChoiceWords];
  for (int e = threadIdx.x; e < kExperts; e += kThreads) u.pairs[e] = 0;
  __syncthreads();
  for (int r = warp_id(); r < s.rows; r += kWarps) {
    const Choice c = choose_experts<kExperts>(s.logits + r * kExperts, kExperts, kTop, STRATA_RENORMALISE, rooms_of_choice[warp_id()]);
    if (lane_id() < kTop) {
      u.ids[r * kTop + lane_id()] = c.id[0];
      atomicAdd(&u.pairs[c.id[0]], 1);
    }
  }
#else
  for (int e = threadIdx.x; e < kExperts; e += kThreads) u.pairs[e] = s.offsets[e + 1] - s.offsets[e];
#endif
  __syncthreads();
}

// Where each used expert is before anything is copied; `before`: copies so far.
__device__ __forceinline__ void look_up(Uses& u, const ExpertTier& t, int layer, uint64_t before) {
  const size_t base = static_cast<size_t>(layer) * kExperts;
  for (int e = threadIdx.x; e < kExperts; e += kThreads) {
    const uint32_t entry = u.pairs[e] > 0 ? t.entries[base + e] : 0;
    u.found[e] = u.pairs[e] == 0 ? kUnused : entry_slot(entry) >= 0 ? kInSlot : kToCopy;
  }
  __syncthreads();
  if (warp_id() == 0) {
    const int n = compact(u.missed, [&](int e) { return u.found[e] == kToCopy; });
    if (lane_id() == 0) u.num_missed = n;
  }
  __syncthreads();
  // The ring keeps what it has until as many more have come: those that missed, and guesses for the next layer meanwhile.
  for (int i = threadIdx.x; i < u.num_missed; i += kThreads) {
    const uint64_t n = t.staged[base + u.missed[i]];  // numbers beyond `before` are of this very launch
    if (n != 0 && n <= before && before + static_cast<uint64_t>(u.num_missed) + kMostAhead - n < t.places) u.found[u.missed[i]] = kInRing;
  }
  __syncthreads();
}

// Of the misses, those that the CPU takes: the ones with the fewest pairs, of equal ones the last. By costs none of what several rows miss:
// such steps promote it before they end, so that it would cross the link all the same, and while nothing else runs.
__device__ __forceinline__ void split(Uses& u, const TierState& state, const PlaneBytes& bytes, int rows) {
  if (warp_id() == 0) {
    const int n = compact(u.missed, [&](int e) { return u.found[e] == kToCopy; });
    if (lane_id() == 0) u.num_missed = n;
  }
  __syncthreads();
  const TierSettings& settings = state.settings;
  const bool shared = settings.copy_all == 0 && (settings.share > 0.0f || (settings.share < 0.0f && rows == 1));
  if (u.num_missed > 0 && shared && state.busy == 0) {
    for (int i = threadIdx.x; i < u.num_missed; i += kThreads) {
      const int mine = u.pairs[u.missed[i]];
      int rank = 0;
      for (int j = 0; j < u.num_missed; ++j) {
        const int other = u.pairs[u.missed[j]];
        rank += other < mine || (other == mine && j > i);
      }
      u.rank[i] = static_cast<short>(rank);
    }
    int fewest = u.pairs[u.missed[0]];
    for (int j = 1; j < u.num_missed; ++j) fewest = min(fewest, u.pairs[u.missed[j]]);
    int computed;
    if (settings.share >= 0.0f)
      computed = static_cast<int>(settings.share * static_cast<float>(u.num_missed) + 0.5f);
    else
      computed = u.num_missed - split_misses(u.num_missed, static_cast<uint64_t>(bytes.gate) + bytes.up + bytes.down,
                                             static_cast<float>(fewest), settings.costs);
    for (int i = threadIdx.x; i < u.num_missed; i += kThreads)
      if (u.rank[i] < computed) u.found[u.missed[i]] = kToCompute;
    __syncthreads();
  }
  if (warp_id() < 3) {
    const int w = warp_id();
    const int n = compact(w == 0 ? u.used : w == 1 ? u.copied : u.computed, [&](int e) {
      return w == 0 ? u.found[e] != kUnused : u.found[e] == (w == 1 ? kToCopy : kToCompute);
    });
    if (lane_id() == 0) (w == 0 ? u.num_used : w == 1 ? u.num_copied : u.num_computed) = n;
  }
  __syncthreads();
}

// Where kernels find what is in no slot; the ring's numbers.
__device__ __forceinline__ void write_tables(const Uses& u, const ExpertTier& t, int layer, uint64_t before) {
  const size_t base = static_cast<size_t>(layer) * kExperts;
  for (int i = threadIdx.x; i < u.num_used; i += kThreads) {
    const int e = u.used[i];
    if (u.found[e] == kInSlot) {
      t.late[e] = 0;
      continue;
    }
    uint64_t at = t.zeros;
    uint32_t item = 0;
    if (u.found[e] == kToCompute) {
      while (u.computed[item] != e) ++item;
      ++item;
    } else {
      uint64_t n = t.staged[base + e];
      if (u.found[e] == kToCopy) {
        n = before + 1;
        for (int j = 0; u.copied[j] != e; ++j) ++n;
        t.staged[base + e] = n;
      }
      at = t.ring + (n - 1) % t.places * t.place_bytes;
    }
    t.late[e] = item;
    for (int p = 0; p < 3; ++p) t.tables[(layer * 3 + p) * static_cast<size_t>(kExperts) + e] = at + t.offsets[layer * 4 + p];
  }
}

// The first and the last thread block come last: they have other things to do.
__device__ __forceinline__ int copy_order() {
  const int blocks = static_cast<int>(gridDim.x);
  return (static_cast<int>(blockIdx.x) + blocks - 1) % blocks;
}

// Hands the CPU its list: items, pairs, and the rows that they need.
__device__ __forceinline__ void post(const Uses& u, const ExpertTier& t, const Step& s, const Rows& in, int layer) {
  if (u.num_computed == 0) return;
  const MailboxView& box = t.box;
  __shared__ int first[kMost + 1];
  __shared__ uint8_t needed[kPairs];
  if (threadIdx.x == 0) {
    first[0] = 0;
    for (int i = 0; i < u.num_computed; ++i) first[i + 1] = first[i] + u.pairs[u.computed[i]];
  }
  for (int r = threadIdx.x; r < s.rows; r += kThreads) needed[r] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < u.num_computed; i += kThreads) {
    const int e = u.computed[i], count = u.pairs[e];
    box.items[i] = MailboxItem{e, first[i], count, 0};
    int found = 0;
#if STRATA_CHOOSE
    for (int p = 0; found < count; ++p)
      if (u.ids[p] == e) box.pairs[first[i] + found++] = p, needed[p / kTop] = 1;
#else
    for (; found < count; ++found) {
      const int p = s.pairs[s.offsets[e] + found];
      box.pairs[first[i] + found] = p, needed[p / kTop] = 1;
    }
#endif
  }
  __syncthreads();
  for (int r = 0; r < s.rows; ++r)
    if (needed[r]) send_row<kThreads>(box, in, r);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) post_list(t, layer, s.rows, u.num_computed);
}

__device__ __forceinline__ tiers::Place place_of(uint8_t found) {
  return found == kInSlot ? kHit : found == kInRing ? kStaged : found == kToCopy ? kCopied : kComputed;
}

// What the layer's step used, for `tell`.
__device__ __forceinline__ void note(const Uses& u, TierState& state, int layer, int rows) {
  static_assert(kMost <= static_cast<int>(kMostUsed), "all that a layer's step uses is noted");
  for (int i = threadIdx.x; i < u.num_used; i += kThreads) {
    const int e = u.used[i];
    state.used.records[i] = RouteRecord{state.epoch, static_cast<uint16_t>(layer), static_cast<uint16_t>(e),
                                        static_cast<uint16_t>(u.pairs[e]), static_cast<uint16_t>(place_of(u.found[e]))};
  }
  if (threadIdx.x == 0) state.used.count = u.num_used, state.used.rows = rows, state.used.copied = u.num_copied;
}

// What was noted: records for the policy, counters for everyone. It takes some microseconds to arrive there.
__device__ __forceinline__ void tell(const ExpertTier& t, int layer, uint64_t bytes) {
  TierState& state = *t.state;
  const uint32_t written = state.routed, count = state.used.count;
  RouteRecord* records = reinterpret_cast<RouteRecord*>(t.routes->records);
  const uint32_t mask = t.routes->capacity - 1;
  __shared__ int slots, ring, guessed, far_pairs;
  if (threadIdx.x == 0) slots = ring = guessed = far_pairs = 0;
  const uint64_t fetched = layer == 0 ? ~uint64_t{0} : state.copies_at[2 * layer - 1];  // guesses came after
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const RouteRecord r = state.used.records[i];
    records[(written + i) & mask] = r;
    if (r.place == kHit) atomicAdd(&slots, 1);
    if (r.place == kStaged) {
      atomicAdd(&ring, 1);
      if (t.staged[static_cast<size_t>(layer) * kExperts + r.expert] > fetched) atomicAdd(&guessed, 1);
    }
    if (r.place == kComputed) atomicAdd(&far_pairs, r.rows);
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint64_t pairs = static_cast<uint64_t>(state.used.rows) * kTop, hits = static_cast<uint64_t>(slots + ring);
  const uint64_t copies = state.used.copied;
  state.routed = written + count;
  tiers::store_release(&t.routes->written, state.routed);
  const auto add = [&](Counter c, uint64_t n) {
    state.counts[c] += n;
    reinterpret_cast<volatile uint64_t*>(t.counts)[c] = state.counts[c];
  };
  add(tiers::kSteps, 0), add(kVoidSteps, 0), add(kWaitsExpired, 0), add(kLookaheadHeld, 0), add(kPromotionsFromRam, 0);
  // A fetcher may be adding to it; what it adds is told a layer later.
  reinterpret_cast<volatile uint64_t*>(t.counts)[kPrefetches] = *const_cast<volatile uint64_t*>(state.counts + kPrefetches);
  add(kRoutedPairs, pairs), add(kComputedPairs, pairs - far_pairs), add(kDistinct, count);
  add(kHits, hits), add(kHitBytes, hits * bytes), add(kStagedHits, ring), add(kPrefetchUsed, guessed), add(kCopies, copies), add(kCopyBytes, copies * bytes);
  *const_cast<volatile uint32_t*>(&t.changes->applied) = state.taken;
}

}  // namespace

extern "C" {

// Grid: as many thread blocks as copy. `x`: rows as floats, where the CPU's kernels want them so. `told_later`: by fetch_guessed.
__global__ void __launch_bounds__(kThreads) stage_experts(const int* live, const float* logits, const int* pairs, const int* offsets,
                                                          const int8_t* q, const float* d, const int16_t* sums, const float* x, int hidden,
                                                          const ExpertTier* tier, int layer, int gate_bytes, int up_bytes, int down_bytes,
                                                          int told_later) {
  __shared__ ExpertTier t;
  __shared__ Uses u;
  if (threadIdx.x == 0) t = *tier;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  const PlaneBytes bytes{gate_bytes, up_bytes, down_bytes};
  const Step s{pairs, offsets, logits, *live};
  const uint64_t before = t.state->copies_at[2 * layer];
  count_pairs(u, s);
  look_up(u, t, layer, before);
  split(u, *t.state, bytes, s.rows);
  if (blockIdx.x == 0) {
    post(u, t, s, Rows{q, d, sums, x, hidden}, layer);
    write_tables(u, t, layer, before);
    if (threadIdx.x == 0) {
      const uint64_t after = before + static_cast<uint64_t>(u.num_copied);
      t.state->copies = t.state->copies_at[2 * layer + 1] = t.state->copies_at[2 * layer + 2] = after;
    }
  }
  if (blockIdx.x == gridDim.x - 1) {
    note(u, *t.state, layer, s.rows);
    __syncthreads();
    if (told_later == 0) tell(t, layer, static_cast<uint64_t>(bytes.gate) + bytes.up + bytes.down);
  }
  const auto place = [&](int i, int p) {
    return t.ring + (before + static_cast<uint64_t>(i)) % t.places * t.place_bytes + t.offsets[layer * 4 + p];
  };
  const auto source = [&](int i, int p) { return t.sources[(layer * 3 + p) * static_cast<size_t>(kExperts) + u.copied[i]]; };
  copy_experts(copy_order(), static_cast<int>(gridDim.x), u.num_copied, bytes, t.state, source, place);
}

#if STRATA_CHOOSE
// What the next layer is likely to lack, by its router's product with this layer's rows; runs beside this layer's experts and
// what comes up to the next router. The last thread block tells what the layer before used, of `used_bytes` an expert.
__global__ void __launch_bounds__(kThreads) fetch_guessed(const int* live, const float* logits, const ExpertTier* tier, int layer, int gate_bytes,
                                                          int up_bytes, int down_bytes, int used_bytes) {
  __shared__ ExpertTier t;
  __shared__ Uses u;
  if (threadIdx.x == 0) t = *tier;
  dependency_wait();
  __syncthreads();
  const int fetchers = static_cast<int>(gridDim.x) - 1;
  if (static_cast<int>(blockIdx.x) == fetchers) return tell(t, layer - 1, static_cast<uint64_t>(used_bytes));
  const int most = static_cast<int>(ahead_of(t.state->settings.ahead, *live));
  if (most == 0) return;
  const PlaneBytes bytes{gate_bytes, up_bytes, down_bytes};
  const Step s{nullptr, nullptr, logits, *live};
  const uint64_t before = t.state->copies_at[2 * layer - 1];
  count_pairs(u, s);
  look_up(u, t, layer, before);
  if (threadIdx.x == 0) {
    u.num_copied = 0;
    for (int rank = 0; rank < kTop; ++rank)
      for (int r = 0; r < s.rows; ++r) {
        const int e = u.ids[r * kTop + rank];
        if (u.found[e] != kToCopy || u.num_copied == most) continue;
        u.found[e] = kInRing;
        u.copied[u.num_copied++] = static_cast<short>(e);
      }
  }
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    for (int i = 0; i < u.num_copied; ++i) t.staged[static_cast<size_t>(layer) * kExperts + u.copied[i]] = before + 1 + static_cast<uint64_t>(i);
    t.state->copies = t.state->copies_at[2 * layer] = before + static_cast<uint64_t>(u.num_copied);
    atomicAdd(reinterpret_cast<unsigned long long*>(t.state->counts + kPrefetches), static_cast<unsigned long long>(u.num_copied));
  }
  const auto place = [&](int i, int p) {
    return t.ring + (before + static_cast<uint64_t>(i)) % t.places * t.place_bytes + t.offsets[layer * 4 + p];
  };
  const auto source = [&](int i, int p) { return t.sources[(layer * 3 + p) * static_cast<size_t>(kExperts) + u.copied[i]]; };
  copy_experts(static_cast<int>(blockIdx.x), fetchers, u.num_copied, bytes, t.state, source, place);
}
#endif

// The CPU's rows to where `combine` reads them: out[p], float [pairs, hidden]. Grid: pairs.
__global__ void __launch_bounds__(kThreads) take_computed(const int* pairs, const int* offsets, float* out, int hidden,
                                                          const ExpertTier* tier, uint32_t* faults) {
  __shared__ ExpertTier t;
  __shared__ int expert, arrived;
  if (threadIdx.x == 0) t = *tier, expert = -1;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  if (static_cast<int>(blockIdx.x) >= offsets[kExperts]) return;
  for (int e = threadIdx.x; e < kExperts; e += kThreads)
    if (t.late[e] != 0 && offsets[e] <= static_cast<int>(blockIdx.x) && static_cast<int>(blockIdx.x) < offsets[e + 1]) expert = e;
  __syncthreads();
  if (expert < 0) return;
  if (threadIdx.x == 0) arrived = take_item(t, t.late[expert] - 1, faults);
  __syncthreads();
  if (!arrived) return;
  const size_t p = static_cast<size_t>(pairs[blockIdx.x]);
  const float4* from = reinterpret_cast<const float4*>(t.box.out + p * hidden);
  for (int i = threadIdx.x; i < hidden / 4; i += kThreads) reinterpret_cast<float4*>(out + p * hidden)[i] = from[i];
}

}  // extern "C"
