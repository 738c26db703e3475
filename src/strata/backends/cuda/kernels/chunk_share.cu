// Experts that a narrow prompt chunk lacks, shared with CPU workers (backends/cuda/chunk_share.py; strata/tiers.h, the mailbox):
// who takes which, between the list of what is absent and its copies; and the workers' rows, after the down product.
// Macros: STRATA_EXPERTS (of a layer).
//
// `mine` is the chunks' own ExpertTier: mailbox, posts and faults; steps that run between a chunk's layers have theirs.
#include "expert_late.cuh"
#include "mailbox_rows.cuh"
#include "prompt_ring.cuh"
#include "sum_before.cuh"

using namespace strata;
using namespace strata::tiers;

namespace {

constexpr int kExperts = STRATA_EXPERTS, kThreads = 512;

struct Sharing {
  int expert[kExperts], pairs[kExperts];  // of what is absent, in ascending order of experts
  int rank[kExperts];                     // by pairs, the fewest first; of equal ones the last
  int few[kExperts];                      // pairs by rank, then of all ranks before
  int warps[kThreads / 32];
  int count;
  bool posting;               // whether the workers may be given anything
  uint64_t first;             // place
  unsigned long long best;    // time << 32 | experts that the CPU takes
};

// What is absent, ranked by pairs.
__device__ __forceinline__ void rank_absent(Sharing& s, const int* offsets) {
  for (int i = threadIdx.x; i < s.count; i += kThreads) s.pairs[i] = offsets[s.expert[i] + 1] - offsets[s.expert[i]];
  __syncthreads();
  for (int i = threadIdx.x; i < s.count; i += kThreads) {
    const int mine = s.pairs[i];
    int rank = 0;
    for (int j = 0; j < s.count; ++j) rank += s.pairs[j] < mine || (s.pairs[j] == mine && j > i);
    s.rank[i] = rank, s.few[rank] = mine;
  }
  __syncthreads();
}

// How many of them the CPU takes: a fixed share, or those with which the layer takes least time, where an expert's rows cost
// the CPU what its pairs are.
__device__ __forceinline__ int count_shared(Sharing& s, const TierSettings& settings, uint64_t bytes) {
  if (!s.posting || s.count == 0 || settings.share == 0.0f || settings.copy_all != 0) return 0;
  if (settings.share > 0.0f) return static_cast<int>(settings.share * static_cast<float>(s.count) + 0.5f);
  int before = 0;
  for (int begin = 0; begin < s.count; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x), mine = i < s.count ? s.few[i] : 0;
    int all;
    const int sum = before + sum_before(mine, s.warps, all);
    before += all;
    if (i < s.count) s.few[i] = sum + mine;
    __syncthreads();
  }
  for (int m = threadIdx.x; m <= s.count; m += kThreads) {
    const float rows = m == 0 ? 0.0f : static_cast<float>(s.few[m - 1]) / static_cast<float>(m);
    const float time = miss_time(s.count, s.count - m, bytes, rows, settings.costs);
    atomicMin(&s.best, static_cast<unsigned long long>(__float_as_uint(time)) << 32 | static_cast<unsigned>(m));
  }
  __syncthreads();
  return static_cast<int>(s.best & 0xffffffffu);
}

// The list becomes what is copied, in places without gaps, then what the CPU computes, whose bytes are zeros here; the latter
// with its pairs goes to the mailbox.
__device__ __forceinline__ void divide(Sharing& s, const ExpertTier& t, const MailboxView& box, const PromptRing& ring, Absent* list, const int* pairs,
                                       const int* offsets, int layer, int computed) {
  if (computed == 0) {
    if (threadIdx.x == 0) list->computed = 0;
    return;
  }
  const int copied = s.count - computed;
  int cpu_begin = 0, pair_begin = 0;
  for (int begin = 0; begin < s.count; begin += kThreads) {
    const int i = begin + static_cast<int>(threadIdx.x);
    const bool in = i < s.count, cpu = in && s.rank[i] < computed;
    int cpus, cpu_pairs;
    const int at = cpu_begin + sum_before(cpu, s.warps, cpus);
    const int first = pair_begin + sum_before(cpu ? s.pairs[i] : 0, s.warps, cpu_pairs);
    cpu_begin += cpus, pair_begin += cpu_pairs;
    if (!in) continue;
    const int e = s.expert[i];
    list->experts()[cpu ? copied + at : i - at] = e;
    const uint64_t from = cpu ? t.zeros : ring.place(s.first + static_cast<uint64_t>(i - at));
    for (int p = 0; p < 3; ++p) ring.tables[static_cast<size_t>(layer * 3 + p) * kExperts + e] = from + t.offsets[layer * 4 + p];
    if (!cpu) continue;
    box.items[at] = MailboxItem{e, first, s.pairs[i], 0};
    for (int j = 0; j < s.pairs[i]; ++j) box.pairs[first + j] = pairs[offsets[e] + j];
  }
  if (threadIdx.x != 0) return;
  list->count = copied, list->computed = computed;
  *ring.taken = s.first + static_cast<uint64_t>(copied);
  volatile uint64_t* seen = ring.counts;
  seen[0] = seen[0] - computed, seen[1] = seen[1] - computed * t.offsets[layer * 4 + 3];
}

// Row p of the workers' results. The whole thread block.
__device__ __forceinline__ void take_row(const MailboxView& box, float* out, int p, int hidden) {
  const float4* from = reinterpret_cast<const float4*>(box.out + static_cast<size_t>(p) * hidden);
  float4* to = reinterpret_cast<float4*>(out + static_cast<size_t>(p) * hidden);
  for (int i = threadIdx.x; i < hidden / 4; i += kThreads) to[i] = from[i];
}

}  // namespace

extern "C" {

// The first thread block decides, the others send the chunk's rows meanwhile, the last to end posts. `first` 1: a chunk begins, which
// forgets the faults of the one before. sent: thread blocks that have ended, left at 0.
__global__ void __launch_bounds__(kThreads, 2) share_absent(const int* live, const int* pairs, const int* offsets, const int8_t* q, const float* d,
                                                         const int16_t* sums, const float* x, int hidden, const ExpertTier* tier,
                                                         const ExpertTier* mine, const PromptRing* prompts, int layer, int first, uint32_t* sent) {
  __shared__ ExpertTier t, m;
  __shared__ PromptRing ring;
  __shared__ Sharing s;
  if (threadIdx.x == 0) t = *tier, m = *mine, ring = *prompts;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  Absent* list = ring.list(layer);
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) {
      if (first != 0) m.state->fault = 0, m.state->settings = *m.settings;
      s.count = list->count, s.first = list->first, s.best = ~0ull;
      // A list that was given up is computed to its end; until then everything is copied.
      s.posting = m.state->fault == 0 && tiers::load_acquire(&m.box.head->served) == m.state->posts;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < s.count; i += kThreads) s.expert[i] = list->experts()[i];
    __syncthreads();
    rank_absent(s, offsets);
    const int computed = count_shared(s, m.state->settings, t.offsets[layer * 4 + 3]);
    divide(s, t, m.box, ring, list, pairs, offsets, layer, computed);
  }
  const int rows = *live;
  for (int r = blockIdx.x; r < rows; r += gridDim.x) send_row<kThreads>(m.box, Rows{q, d, sums, x, hidden}, r);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence_system();
  if (atomicAdd(sent, 1u) != gridDim.x - 1) return;
  __threadfence_system();
  *sent = 0;
  const int computed = *const_cast<volatile int32_t*>(&list->computed);
  if (computed > 0) post_list(m, layer, rows, computed);
}

// The workers' rows to where `combine` reads them: out[p], float [pairs, hidden]. Thread blocks take items in turn.
__global__ void __launch_bounds__(kThreads, 2) take_computed(const int* pairs, const int* offsets, float* out, int hidden, const ExpertTier* mine,
                                                          const PromptRing* prompts, int layer, uint32_t* faults) {
  __shared__ ExpertTier m;
  __shared__ PromptRing ring;
  __shared__ int arrived;
  if (threadIdx.x == 0) m = *mine, ring = *prompts;
  dependency_wait();
  dependency_launch();
  __syncthreads();
  Absent* list = ring.list(layer);
  for (int item = blockIdx.x; item < list->computed; item += gridDim.x) {
    if (threadIdx.x == 0) arrived = take_item(m, static_cast<uint32_t>(item), faults);
    __syncthreads();
    if (!arrived) return;
    const int e = list->experts()[list->count + item];
    for (int i = offsets[e]; i < offsets[e + 1]; ++i) take_row(m.box, out, pairs[i], hidden);
    __syncthreads();
  }
}

}  // extern "C"
