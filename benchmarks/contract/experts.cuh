// One layer's routed experts for one row: gate and up IQ3_XXS, down Q2_0. Three nodes: router (norm, quantise, logits; its
// last thread block selects), gate_up (with the copy of misses), down (its last thread blocks combine). An expert's bits
// do not depend on where it was computed.
#pragma once

#include "gemv.cuh"
#include "mailbox.h"
#include "step.cuh"

namespace strata {

constexpr uint64_t kWaitLimit = 50'000'000;  // ns; a wait that expires raises the fault flag and goes on

// Waits until *flag == value; false (and *fault = 1) on expiry.
template <bool System> __device__ __forceinline__ bool wait_for(const uint32_t* flag, uint32_t value, uint32_t* fault) {
  const uint64_t start = global_timer();
  while ((System ? load_acquire_system(flag) : load_acquire_device(flag)) != value) {
    if (*reinterpret_cast<volatile uint32_t*>(fault) != 0) return false;
    if (global_timer() - start > kWaitLimit) {
      *reinterpret_cast<volatile uint32_t*>(fault) = 1;
      return false;
    }
  }
  return true;
}

// True in every thread of the thread block that comes last of `count`; what the others wrote before is visible to it.
__device__ __forceinline__ bool arrive_last(uint32_t* arrived, uint32_t count) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived, 1u) == count - 1;
    if (last) *arrived = 0;
    __threadfence();
  }
  __syncthreads();
  return last;
}

struct Planes8 {  // a q8 row
  int8_t* q;
  float* d;
  int16_t* sums;
};

// What select reads: residency[e] is a slot or -1; addresses of slots, of experts in page-locked memory, of staging slots.
struct ExpertTables {
  const int32_t* residency;
  const uint64_t *slots, *sources, *staging;
};

// Top k, residency, the plan, and the mailbox of what the CPU shall compute: the last `to_cpu` misses in rank order; the
// other misses go through the staging ring. One thread block.
__device__ __forceinline__ void select(const float* logits, const ExpertTables& t, int to_cpu, uint32_t step, const Planes8& x8,
                                       Mailbox* mailbox, PlanEntry* plan, int32_t* ids) {
  __shared__ int count;
  __shared__ float all[kExperts];
  for (int i = threadIdx.x; i < kExperts; i += blockDim.x) all[i] = __ldcg(logits + i);
  __syncthreads();
  if (warp_id() == 0) {
    int id;
    float weight;
    router_topk<kExperts / 32>(all, kExperts, kTop, true, id, weight);
    PlanEntry entry{0, 0, kResident, id, weight, 0};
    const int slot = lane_id() < kTop ? t.residency[id] : 0;
    const unsigned misses = __ballot_sync(kFullWarp, slot < 0);
    const int index = __popc(misses & ((1u << lane_id()) - 1u)), copied = max(0, __popc(misses) - to_cpu);
    if (lane_id() < kTop) {
      if (slot >= 0) {
        entry.address = t.slots[slot];
      } else if (index >= copied) {
        entry.place = kOnCpu;
        mailbox->rank[index - copied] = lane_id(), mailbox->expert[index - copied] = id;
      } else {
        entry.place = kCopied, entry.address = t.staging[lane_id()], entry.source = t.sources[id];
      }
      plan[lane_id()] = entry;
      ids[lane_id()] = id;
    }
    if (lane_id() == 0) count = __popc(misses) - copied;
  }
  __syncthreads();
  if (count == 0) return;
  for (int i = threadIdx.x; i < kHidden / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(mailbox->q)[i] = __ldcg(reinterpret_cast<const uint4*>(x8.q) + i);
  for (int i = threadIdx.x; i < kHidden / 32; i += blockDim.x) {
    mailbox->d[i] = __ldcg(x8.d + i);
    reinterpret_cast<uint32_t*>(mailbox->sums)[i] = __ldcg(reinterpret_cast<const uint32_t*>(x8.sums) + i);
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    mailbox->count = count;
    store_release_system(&mailbox->posted, step);
  }
}

constexpr int kRouterBlocks = kExperts / 8 + kHidden / 256;

// kRouterBlocks thread blocks of 8 warps: a warp an expert's logit of the normed row, or a block of it to quantise. The
// last thread block goes on to select.
__device__ __forceinline__ void router(const float* x, const float* w, float eps, float* logits, uint32_t* arrived, const Planes8& x8,
                                       const ExpertTables& tables, int to_cpu, const uint32_t* step, Mailbox* mailbox, PlanEntry* plan,
                                       int32_t* ids) {
  constexpr int each = kHidden / 32;
  const int warp = blockIdx.x * 8 + warp_id();
  float row[each];
  if (warp < kExperts) {
#pragma unroll
    for (int i = 0; i < each; ++i) row[i] = __ldg(w + static_cast<size_t>(warp) * kHidden + 32 * i + lane_id());
  }
  __shared__ float u[kHidden];
  dependency_wait();
  dependency_launch();
#pragma unroll
  for (int i = 0; i < kHidden / 256; ++i) u[256 * i + threadIdx.x] = x[256 * i + threadIdx.x];
  __syncthreads();
  const float mean = div32(warp_dot(u, u, kHidden), static_cast<float>(kHidden));
  const float scale = div32(1.0f, sqrt32(mean + eps));
  if (warp < kExperts) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < each; ++i) sum = fma32(row[i], u[32 * i + lane_id()] * scale, sum);
    sum = warp_tree_sum(sum);
    if (lane_id() == 0) logits[warp] = sum;
  } else {
    const int b = warp - kExperts;
    quantize_block(u[b * 32 + lane_id()] * scale, x8.q + b * 32, x8.d + b, x8.sums + 2 * b);
  }
  if (arrive_last(arrived, gridDim.x)) select(logits, tables, to_cpu, *step, x8, mailbox, plan, ids);
}

// This thread block's share of every copied expert, one expert after another; the last to finish one raises its flag.
__device__ __forceinline__ void copy_misses(const PlanEntry* plan, int share, int shares, uint32_t* arrived, uint32_t* ready, uint32_t step) {
  constexpr int ahead = 4;
  for (int r = 0; r < kTop; ++r) {
    if (plan[r].place != kCopied) continue;
    const uint4* from = reinterpret_cast<const uint4*>(plan[r].source);
    uint4* to = reinterpret_cast<uint4*>(plan[r].address);
    const int stride = shares * blockDim.x, units = kExpertBytes / 16;
    for (int i = share * blockDim.x + threadIdx.x; i < units; i += ahead * stride) {
      uint4 v[ahead];
#pragma unroll
      for (int j = 0; j < ahead; ++j)
        if (i + j * stride < units) v[j] = *(from + i + j * stride);
#pragma unroll
      for (int j = 0; j < ahead; ++j)
        if (i + j * stride < units) to[i + j * stride] = v[j];
    }
    if (arrive_last(arrived + r, shares) && threadIdx.x == 0) store_release_device(ready + r, step);
  }
}

using GateTile = Tile<kHidden>;
using DownTile = Tile<kExpertWidth>;
constexpr int kExpertThreads = 256;
constexpr int kGateUpRows = kExpertThreads / 32 * GateTile::kRows, kGateUpBlocks = kExpertWidth / kGateUpRows;
constexpr int kDownRows = kExpertThreads / 32 * DownTile::kRows, kDownBlocks = kHidden / kDownRows;

// Thread blocks [0, copies) copy misses; then kGateUpBlocks a rank: kGateUpRows values of h = silu(gate) * up.
__device__ __forceinline__ void gate_up(const PlanEntry* plan, int copies, const Planes8& x8, uint32_t* arrived, uint32_t* ready,
                                        const uint32_t* step, uint32_t* fault, float* h) {
  __shared__ __align__(16) uint32_t table[256];
  __shared__ Activations<kHidden, 1> a;
  __shared__ __align__(16) float scratch[kExpertThreads];
  Packed<QuantType::IQ3_XXS>::fill<1>(table);
  dependency_wait();
  dependency_launch();  // after the wait: `down` may read the plan before its own wait
  if (static_cast<int>(blockIdx.x) < copies) return copy_misses(plan, blockIdx.x, copies, arrived, ready, *step);
  const int unit = blockIdx.x - copies, rank = unit / kGateUpBlocks, part = unit % kGateUpBlocks;
  const PlanEntry entry = plan[rank];
  if (entry.place == kOnCpu) return;
  if (entry.place == kCopied) {
    if (threadIdx.x == 0) wait_for<false>(ready + rank, *step, fault);
    __syncthreads();
  }
  const uint8_t* gate = reinterpret_cast<const uint8_t*>(entry.address);
  const uint8_t* up = gate + kGateBytes;
  const int first = part * kGateUpRows + warp_id() * GateTile::kRows, row = first + lane_id() / GateTile::kSegs;
  Packed<QuantType::IQ3_XXS>::Raw g[GateTile::kAhead], u[GateTile::kAhead];
  load_ahead<QuantType::IQ3_XXS, kHidden>(g, gate, kExpertWidth, row);
  load_ahead<QuantType::IQ3_XXS, kHidden>(u, up, kExpertWidth, row);
  a.stage(x8.q, x8.d, x8.sums, 1);
  __syncthreads();
  float y[1], gate_total = 0.0f, up_total = 0.0f;
  segment_chain<QuantType::IQ3_XXS, kHidden, 1, 1>(g, gate, kExpertWidth, row, table, a, y);
  segment_totals<kHidden, 1>(y, scratch + warp_id() * 32, [&](int, int, float total) { gate_total = total; });
  segment_chain<QuantType::IQ3_XXS, kHidden, 1, 1>(u, up, kExpertWidth, row, table, a, y);
  segment_totals<kHidden, 1>(y, scratch + warp_id() * 32, [&](int, int, float total) { up_total = total; });
  if (lane_id() < GateTile::kRows) h[rank * kExpertWidth + first + lane_id()] = silu32(gate_total) * up_total;
}

// Quantises a row of K floats into shared memory, a warp a block.
template <int K> __device__ __forceinline__ void stage_floats(Activations<K, 1>& a, const float* x) {
  for (int b = warp_id(); b < K / 32; b += static_cast<int>(blockDim.x) / 32)
    quantize_block(x[b * 32 + lane_id()], reinterpret_cast<int8_t*>(&a.codes[0][Activations<K, 1>::word(b)]), &a.scale[0][b],
                   reinterpret_cast<int16_t*>(&a.sums[0][b]));
}

__device__ __forceinline__ PlanEntry read_plan(const PlanEntry* p) {  // past the first-level cache
  PlanEntry entry;
  const uint4 a = __ldcg(reinterpret_cast<const uint4*>(p)), b = __ldcg(reinterpret_cast<const uint4*>(p) + 1);
  entry.address = static_cast<uint64_t>(a.y) << 32 | a.x;
  entry.place = static_cast<int32_t>(b.x);
  entry.weight = __uint_as_float(b.z);
  return entry;
}

// kDownBlocks thread blocks a rank: rows[rank][kHidden]. The last rank to finish a part combines it in rank order:
// x += sum of weight * row, with the CPU's rows from the mailbox.
__device__ __forceinline__ void down(const PlanEntry* plan, const float* h, const Mailbox* mailbox, const uint32_t* step, uint32_t* fault,
                                     uint32_t* arrived, float* rows, float* x) {
  __shared__ Activations<kExpertWidth, 1> a;
  __shared__ __align__(16) float scratch[kExpertThreads];
  const int rank = blockIdx.x / kDownBlocks, part = blockIdx.x % kDownBlocks;
  const int first = part * kDownRows + warp_id() * DownTile::kRows, row = first + lane_id() / DownTile::kSegs;
  const PlanEntry entry = read_plan(plan + rank);
  const uint8_t* w = reinterpret_cast<const uint8_t*>(entry.address) + 2 * kGateBytes;
  Packed<QuantType::Q2_0>::Raw raw[DownTile::kAhead];
  if (entry.place == kResident) load_ahead<QuantType::Q2_0, kExpertWidth>(raw, w, kHidden, row);
  dependency_wait();
  dependency_launch();
  if (entry.place != kOnCpu) {
    if (entry.place == kCopied) load_ahead<QuantType::Q2_0, kExpertWidth>(raw, w, kHidden, row);
    stage_floats(a, h + rank * kExpertWidth);
    __syncthreads();
    float y[1];
    segment_chain<QuantType::Q2_0, kExpertWidth, 1, 1>(raw, w, kHidden, row, nullptr, a, y);
    segment_totals<kExpertWidth, 1>(y, scratch + warp_id() * 32,
                                    [&](int r, int, float total) { rows[static_cast<size_t>(rank) * kHidden + first + r] = total; });
  }
  if (!arrive_last(arrived + part, kTop)) return;
  if (threadIdx.x < kTop && read_plan(plan + threadIdx.x).place == kOnCpu) wait_for<true>(mailbox->done + threadIdx.x, *step, fault);
  __syncthreads();
  const int i = part * kDownRows + threadIdx.x;
  if (threadIdx.x >= kDownRows) return;
  float out = 0.0f, value[kTop], weight[kTop];
#pragma unroll
  for (int r = 0; r < kTop; ++r) {
    const PlanEntry e = read_plan(plan + r);
    weight[r] = e.weight;
    value[r] = e.place == kOnCpu ? *reinterpret_cast<const volatile float*>(&mailbox->rows[r][i])
                                 : __ldcg(rows + static_cast<size_t>(r) * kHidden + i);
  }
#pragma unroll
  for (int r = 0; r < kTop; ++r) out = combine_step(weight[r], value[r], out);
  x[i] = x[i] + out;
}

}  // namespace strata
