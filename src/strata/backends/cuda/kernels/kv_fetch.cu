// kv_fetch (ops/kv_fetch.py): groups of cells that rows have selected, and their incomplete ones, from page-locked RAM into slots.
// Attention reads groups that found no place where they lie, so that places decide no bit.
//
// kv_resolve, a thread a wanted group: marks those that lie in a slot as used by this step and lists the others once. Its last thread
// block finds slots for the list by second chance: the hand passes slots that this step uses, takes free ones and those that nobody
// asked for since it came by, and clears the others' marks. kv_copy then brings the groups.
// clock: hand, step, -, -, then owner (group + 1; 0: free), step of the last use and mark of each slot.
#include "kv.cuh"
#include "kv_copy.cuh"

using namespace strata;

namespace {

constexpr int kHead = 4, kThreads = 512, kListed = -1;  // in the table, while slots are sought
enum Count { kHits, kFetches, kStreamed, kFetchBytes };
using Counter = unsigned long long;

// A missing group and the slot that it gets.
struct Missing {
  int group, slot;
};

// Left by kv_resolve for kv_copy.
struct Found {
  int placed, listed;
};

struct Wanted {
  const int *positions, *sequences, *page_table, *selected;
  int pages_per_seq, num_pages, ratio, budget;

  // The group that a row wants i-th of budget + 1; -1: none; -2: outside its table.
  __device__ __forceinline__ int group(int row, int i) const {
    const int position = positions[row], blocks = (position + 1) / ratio;
    if (position < 0) return i == 0 ? -2 : -1;
    if (i < budget ? i >= min(blocks, budget) : (position + 1) % ratio == 0) return -1;
    const bool listed = i < budget && blocks > budget;  // else all blocks are wanted, and nobody wrote a list
    const int block = listed ? selected[static_cast<size_t>(row) * budget + i] : i < budget ? i : blocks;
    if (block < 0) return -2;
    const int per_page = kPageCells / ratio, page = page_id(page_table, pages_per_seq, num_pages, sequences[row], block / per_page);
    return page < 0 ? -2 : page * per_page + block % per_page;
  }
};

struct Slots {
  int *table, *clock, count;

  __device__ __forceinline__ int* owner() const { return clock + kHead; }
  __device__ __forceinline__ int* used() const { return clock + kHead + count; }
  __device__ __forceinline__ int* marked() const { return clock + kHead + 2 * count; }

  // Finds slots for the first of `listed` groups, all of a thread block together; returns how many got one.
  __device__ int place(Missing* missing, int listed, int step) const {
    __shared__ int in_warp[kThreads / 32], end;
    const int window = min(kThreads, count), t = threadIdx.x;
    int hand = clock[0], placed = 0;
    for (int scanned = 0; placed < listed && scanned < 2 * count;) {
      const int slot = hand + t < count ? hand + t : hand + t - count;
      const bool here = t < window && scanned + t < 2 * count;
      const int held = here ? __ldcg(owner() + slot) : 0;
      const bool passed = here && held != 0 && __ldcg(used() + slot) == step;
      const bool again = here && held != 0 && !passed && __ldcg(marked() + slot) != 0, free = here && !passed && !again;
      const uint32_t frees = __ballot_sync(kFullWarp, free);
      if (lane_id() == 0) in_warp[warp_id()] = __popc(frees);
      __syncthreads();
      int rank = __popc(frees & ((1u << lane_id()) - 1)), all = 0;
      for (int w = 0; w < kThreads / 32; ++w) rank += w < warp_id() ? in_warp[w] : 0, all += in_warp[w];
      const int left = listed - placed, last = min(window, 2 * count - scanned) - 1;
      if (free && rank == left - 1) end = t;
      __syncthreads();
      const int to = all >= left ? end : last;
      if (again && t <= to) __stcg(marked() + slot, 0);
      if (free && rank < left) take(slot, held, missing + placed + rank, step);
      placed += min(all, left), scanned += to + 1, hand = (hand + to + 1) % count;
      __syncthreads();
    }
    if (t == 0) clock[0] = hand, clock[1] = step;
    return placed;
  }

 private:
  __device__ __forceinline__ void take(int slot, int held, Missing* missing, int step) const {
    if (held != 0) __stcg(table + held - 1, 0);
    const int group = __ldcg(&missing->group);
    missing->slot = slot;
    __stcg(owner() + slot, group + 1);
    __stcg(used() + slot, step);
    __stcg(marked() + slot, 0);  // a second chance is for what is used again
    __stcg(table + group, slot + 1);
  }
};

}  // namespace

// counters: wanted, listed, thread blocks that are done; zero again at the end.
extern "C" __global__ void __launch_bounds__(kThreads) kv_resolve(
    const int* live, const int* positions, const int* sequences, const int* page_table, const int* selected, int* table, int* clock,
    Counter* counts, uint32_t* counters, Missing* missing, Found* found, int pages_per_seq, int num_pages, int ratio, int budget, int slots,
    int group_bytes, uint32_t* faults) {
  __shared__ bool last_block;
  dependency_wait();
  dependency_launch();
  const Wanted wanted = {positions, sequences, page_table, selected, pages_per_seq, num_pages, ratio, budget};
  const Slots s = {table, clock, slots};
  const int step = clock[1] == 0x7fffffff ? 1 : clock[1] + 1;
  const int u = blockIdx.x * kThreads + threadIdx.x, row = u / (budget + 1);
  const int group = row < *live ? wanted.group(row, u % (budget + 1)) : -1;
  if (group == -2) report(faults, kFaultRange);
  if (group >= 0) {
    const int entry = __ldcg(table + group);
    if (entry > 0) {
      __stcg(s.used() + entry - 1, step);
      __stcg(s.marked() + entry - 1, 1);
    } else if (atomicCAS(table + group, 0, kListed) == 0) {
      missing[atomicAdd(counters + 1, 1u)].group = group;
    }
  }
  const int here = __syncthreads_count(group >= 0);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(counters, static_cast<uint32_t>(here));
    __threadfence();
    last_block = atomicAdd(counters + 2, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last_block) return;
  __threadfence();
  const int listed = static_cast<int>(__ldcg(counters + 1)), placed = s.place(missing, listed, step);
  for (int i = placed + threadIdx.x; i < listed; i += kThreads) __stcg(table + __ldcg(&missing[i].group), 0);
  if (threadIdx.x != 0) return;
  *found = {placed, listed};
  atomicAdd(counts + kHits, static_cast<Counter>(__ldcg(counters) - placed));  // kv_copy takes back those that found no place
  atomicAdd(counts + kFetches, static_cast<Counter>(placed));
  atomicAdd(counts + kFetchBytes, static_cast<Counter>(placed) * group_bytes);
  counters[0] = counters[1] = counters[2] = 0;
}

// A warp a key head's part of a group, of keys or of values; the bytes are of a head's cell in each plane. A link taken as slower than
// it is (ns_per_byte > 0) keeps the launch waiting.
extern "C" __global__ void __launch_bounds__(256) kv_copy(
    const int* live, const int* positions, const int* sequences, const int* page_table, const int* selected, const int* table,
    Counter* counts, const Missing* missing, const Found* found, const uint8_t* k_pool, const uint8_t* v_pool, const uint8_t* k_scales,
    const uint8_t* v_scales, uint8_t* k_slots, uint8_t* v_slots, uint8_t* k_slot_scales, uint8_t* v_slot_scales, int pages_per_seq,
    int num_pages, int ratio, int budget, int kv_heads, int k_bytes, int v_bytes, int k_scale_bytes, int v_scale_bytes,
    float ns_per_byte) {
  dependency_wait();
  dependency_launch();
  const uint64_t start = global_timer();
  const int placed = found->placed, per_page = kPageCells / ratio;
  for (int u = blockIdx.x * 8 + warp_id(); u < placed * kv_heads * 2; u += gridDim.x * 8) {
    const Missing m = missing[u / (2 * kv_heads)];
    const int head = u / 2 % kv_heads;
    const size_t from = (static_cast<size_t>(m.group / per_page) * kv_heads + head) * kPageCells + m.group % per_page * ratio;
    const size_t to = (static_cast<size_t>(m.slot) * kv_heads + head) * ratio;
    const bool value = u & 1;
    const int bytes = value ? v_bytes : k_bytes, scale = value ? v_scale_bytes : k_scale_bytes;
    copy_bytes((value ? v_slots : k_slots) + to * bytes, (value ? v_pool : k_pool) + from * bytes, ratio * bytes);
    if (scale > 0)
      copy_bytes((value ? v_slot_scales : k_slot_scales) + to * scale, (value ? v_scales : k_scales) + from * scale, ratio * scale);
  }
  if (ns_per_byte > 0.0f && blockIdx.x == 0 && threadIdx.x == 0) {
    const float bytes = static_cast<float>(k_bytes + v_bytes + k_scale_bytes + v_scale_bytes) * static_cast<float>(placed * kv_heads * ratio);
    while (static_cast<float>(global_timer() - start) < bytes * ns_per_byte) __nanosleep(100);
  }
  if (found->listed == placed) return;
  const Wanted wanted = {positions, sequences, page_table, selected, pages_per_seq, num_pages, ratio, budget};
  int streamed = 0;
  for (int u = blockIdx.x * 256 + threadIdx.x; u < *live * (budget + 1); u += gridDim.x * 256) {
    const int group = wanted.group(u / (budget + 1), u % (budget + 1));
    streamed += group >= 0 && table[group] == 0;
  }
  for (int half = 16; half > 0; half /= 2) streamed += __shfl_xor_sync(kFullWarp, streamed, half);
  if (lane_id() != 0 || streamed == 0) return;
  atomicAdd(counts + kStreamed, static_cast<Counter>(streamed));
  atomicAdd(counts + kHits, 0ull - static_cast<Counter>(streamed));
}
