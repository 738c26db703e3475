// One layer's routed experts for one row: gate and up IQ3_XXS, down Q2_0. Five nodes: router, select, gate_up (with the
// copy of misses), down, combine. An expert's bits do not depend on where it was computed.
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

// Grid kExperts / 8 + kHidden / 256 thread blocks of 8 warps: a warp an expert's logit, then a warp a block to quantise.
__device__ __forceinline__ void router(const float* x, const float* w, float* logits, int8_t* q, float* d, int16_t* sums) {
  constexpr int each = kHidden / 32;
  const int warp = blockIdx.x * 8 + warp_id();
  if (warp < kExperts) {
    float row[each];
#pragma unroll
    for (int i = 0; i < each; ++i) row[i] = __ldg(w + static_cast<size_t>(warp) * kHidden + 32 * i + lane_id());
    dependency_launch();
    dependency_wait();
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < each; ++i) sum = fma32(row[i], x[32 * i + lane_id()], sum);
    sum = warp_tree_sum(sum);
    if (lane_id() == 0) logits[warp] = sum;
  } else {
    dependency_launch();
    dependency_wait();
    const int b = warp - kExperts;
    quantize_block(x[b * 32 + lane_id()], q + b * 32, d + b, sums + 2 * b);
  }
}

// One thread block: top k, residency, the plan, and the mailbox of what the CPU shall compute. residency[e]: slot or -1.
// Misses go to the CPU from rank order on when `to_cpu`, else to the staging ring.
__device__ __forceinline__ void select(const float* logits, const int32_t* residency, const uint64_t* slots, const uint64_t* sources,
                                       const uint64_t* staging, int to_cpu, const uint32_t* step, const int8_t* q, const float* d,
                                       const int16_t* sums, Mailbox* mailbox, PlanEntry* plan, int32_t* ids) {
  __shared__ int count;
  dependency_launch();
  dependency_wait();
  if (warp_id() == 0) {
    int id;
    float weight;
    router_topk<kExperts / 32>(logits, kExperts, kTop, true, id, weight);
    PlanEntry entry{0, 0, kResident, id, weight, 0};
    const int slot = lane_id() < kTop ? residency[id] : 0;
    const unsigned misses = __ballot_sync(kFullWarp, slot < 0);
    const int index = __popc(misses & ((1u << lane_id()) - 1u));
    if (lane_id() < kTop) {
      if (slot >= 0) {
        entry.address = slots[slot];
      } else if (to_cpu) {
        entry.place = kOnCpu;
        mailbox->rank[index] = lane_id(), mailbox->expert[index] = id;
      } else {
        entry.place = kCopied, entry.address = staging[lane_id()], entry.source = sources[id];
      }
      plan[lane_id()] = entry;
      ids[lane_id()] = id;
    }
    if (lane_id() == 0) count = to_cpu ? __popc(misses) : 0;
  }
  __syncthreads();
  if (count == 0) return;
  for (int i = threadIdx.x; i < kHidden / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(mailbox->q)[i] = reinterpret_cast<const uint4*>(q)[i];
  for (int i = threadIdx.x; i < kHidden / 32; i += blockDim.x) {
    mailbox->d[i] = d[i];
    reinterpret_cast<uint32_t*>(mailbox->sums)[i] = reinterpret_cast<const uint32_t*>(sums)[i];
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    mailbox->count = count;
    store_release_system(&mailbox->posted, *step);
  }
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
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(arrived + r, 1u) == static_cast<uint32_t>(shares) - 1) {
      arrived[r] = 0;
      __threadfence();
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(ready + r), "r"(step) : "memory");
    }
  }
}

// Segments of two rows (lanes) of gate or up, from the loaded words.
using GateTile = Tile<kHidden>;
using DownTile = Tile<kExpertWidth>;
constexpr int kGateUpThreads = 512, kGateUpBlocks = kExpertWidth / 32, kDownThreads = 256;
constexpr int kDownBlocks = kHidden / (kDownThreads / 32 * DownTile::kRows);

// Thread blocks [0, copies) copy misses; then kGateUpBlocks a rank: 32 rows of gate and of up, silu(gate) * up, quantised.
__device__ __forceinline__ void gate_up(const PlanEntry* plan, int copies, const int8_t* q, const float* d, const int16_t* sums,
                                        uint32_t* arrived, uint32_t* ready, const uint32_t* step, uint32_t* fault, int8_t* hq, float* hd,
                                        int16_t* hsums) {
  __shared__ __align__(16) uint32_t table[256];
  __shared__ Activations<kHidden, 1> a;
  __shared__ float scratch[kGateUpThreads], h[32];
  Packed<QuantType::IQ3_XXS>::fill<1>(table);
  dependency_launch();
  dependency_wait();
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
  const int first = part * 32 + warp_id() * GateTile::kRows, row = first + lane_id() / GateTile::kSegs;
  Packed<QuantType::IQ3_XXS>::Raw g[GateTile::kAhead], u[GateTile::kAhead];
  load_ahead<QuantType::IQ3_XXS, kHidden>(g, gate, kExpertWidth, row);
  load_ahead<QuantType::IQ3_XXS, kHidden>(u, up, kExpertWidth, row);
  a.stage(q, d, sums, 1);
  __syncthreads();
  float y[1], gate_total = 0.0f, up_total = 0.0f;
  segment_chain<QuantType::IQ3_XXS, kHidden, 1, 1>(g, gate, kExpertWidth, row, table, a, y);
  segment_totals<kHidden, 1>(y, scratch + warp_id() * 32, [&](int, int, float total) { gate_total = total; });
  segment_chain<QuantType::IQ3_XXS, kHidden, 1, 1>(u, up, kExpertWidth, row, table, a, y);
  segment_totals<kHidden, 1>(y, scratch + warp_id() * 32, [&](int, int, float total) { up_total = total; });
  if (lane_id() < GateTile::kRows) h[warp_id() * GateTile::kRows + lane_id()] = silu32(gate_total) * up_total;
  __syncthreads();
  if (warp_id() == 0) {
    const int b = rank * (kExpertWidth / 32) + part;
    quantize_block(h[lane_id()], hq + b * 32, hd + b, hsums + 2 * b);
  }
}

// kDownBlocks thread blocks a rank; rows[rank][kHidden].
__device__ __forceinline__ void down(const PlanEntry* plan, const int8_t* hq, const float* hd, const int16_t* hsums, float* rows) {
  __shared__ Activations<kExpertWidth, 1> a;
  __shared__ float scratch[kDownThreads];
  const int rank = blockIdx.x / kDownBlocks, part = blockIdx.x % kDownBlocks;
  const int first = (part * (kDownThreads / 32) + warp_id()) * DownTile::kRows, row = first + lane_id() / DownTile::kSegs;
  dependency_launch();
  dependency_wait();
  const PlanEntry entry = plan[rank];
  if (entry.place == kOnCpu) return;
  const uint8_t* w = reinterpret_cast<const uint8_t*>(entry.address) + 2 * kGateBytes;
  Packed<QuantType::Q2_0>::Raw raw[DownTile::kAhead];
  load_ahead<QuantType::Q2_0, kExpertWidth>(raw, w, kHidden, row);
  a.stage(hq + rank * kExpertWidth, hd + rank * (kExpertWidth / 32), hsums + rank * (kExpertWidth / 16), 1);
  __syncthreads();
  float y[1];
  segment_chain<QuantType::Q2_0, kExpertWidth, 1, 1>(raw, w, kHidden, row, nullptr, a, y);
  segment_totals<kExpertWidth, 1>(y, scratch + warp_id() * 32,
                                  [&](int r, int, float total) { rows[static_cast<size_t>(rank) * kHidden + first + r] = total; });
}

// x += sum over ranks of weight * row, in rank order; rows of the CPU are taken from its mailbox.
__device__ __forceinline__ void combine(const PlanEntry* plan, const float* rows, const Mailbox* mailbox, const uint32_t* step, uint32_t* fault,
                                        float* x) {
  dependency_launch();
  dependency_wait();
  if (threadIdx.x < kTop && plan[threadIdx.x].place == kOnCpu) wait_for<true>(mailbox->done + threadIdx.x, *step, fault);
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float row[kTop], out = 0.0f;
#pragma unroll
  for (int r = 0; r < kTop; ++r) {
    const bool cpu = plan[r].place == kOnCpu;
    row[r] = cpu ? *reinterpret_cast<const volatile float*>(&mailbox->rows[r][i]) : rows[static_cast<size_t>(r) * kHidden + i];
  }
#pragma unroll
  for (int r = 0; r < kTop; ++r) out = combine_step(plan[r].weight, row[r], out);
  x[i] = x[i] + out;
}

}  // namespace strata
