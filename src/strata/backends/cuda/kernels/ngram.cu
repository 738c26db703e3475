// Hashed n-grams (ops/ngram.py): table rows of a token's n-grams, their values, and their gate.
#include "mailbox.cuh"
#include "rows.cuh"
#include "strata/quants.h"

#ifndef STRATA_TYPE
#define STRATA_TYPE QuantType::F32
#endif

using namespace strata;

namespace {

struct Tokens {
  StepRows rows;
  const int* tokens;
  int* history;  // [slots, 64]
  int eos;

  __device__ __forceinline__ int* kept(int slot, int position) const {
    return history + static_cast<size_t>(slot) * kRingRows + ring_row(position);
  }
  // The token `back` before row r's; eos before the sequence begins.
  __device__ __forceinline__ int before(int r, int back) const {
    const int sequence = rows.sequences[r], position = rows.positions[r] - back;
    if (position < 0) return eos;
    return rows.same(r - back, sequence) ? tokens[r - back] : *kept(sequence, position);
  }
};

}  // namespace

extern "C" {

// One thread block, a thread a (row, head); old tokens are read before new ones are kept. Where the table lies with a store on the host
// (box not null), the rows are asked for at once: `posts` counts the requests of this box.
__global__ void ngram_rows(const int* live, const int* positions, const int* sequences, const int* tap_positions, const int* tap_slots,
                           const int* tokens, const uint64_t* multipliers, const uint64_t* sizes, const uint64_t* offsets, int* history,
                           int* out, int size, int heads, int eos, int slots, int tapped, tiers::NgramMailbox* box, int* asked,
                           uint32_t* posts, uint64_t limit_ns, uint32_t* faults) {
  __shared__ bool free;
  dependency_wait();
  dependency_launch();
  if (box != nullptr && threadIdx.x == 0) free = wait_for_host(&box->served, *posts, limit_ns, faults);
  __syncthreads();
  const Tokens t{{positions, sequences, *live, slots}, tokens, history, eos};
  const int orders = size - 1, per_order = heads / orders;
  for (int u = threadIdx.x; u < t.rows.live * heads; u += blockDim.x) {
    const int r = u / heads, head = u % heads;
    if (!t.rows.valid(r)) {
      report(faults, kFaultRange);
      continue;
    }
    uint64_t mixed = static_cast<uint64_t>(static_cast<int64_t>(tokens[r])) * multipliers[0];
    bool cut = false;
    for (int back = 1; back <= head / per_order + 1; ++back) {
      const int older = t.before(r, back);
      cut = cut || older == eos;
      mixed ^= static_cast<uint64_t>(static_cast<int64_t>(cut ? eos : older)) * multipliers[back];
    }
    out[u] = static_cast<int>(mixed % sizes[head] + offsets[head]);
    if (box != nullptr && free) asked[u] = out[u];
  }
  if (box != nullptr) __threadfence_system();
  __syncthreads();
  if (box != nullptr && threadIdx.x == 0 && free) {
    box->count = t.rows.live * heads;
    store_release_system(&box->posted, *posts += 1);
  }
  for (int r = threadIdx.x; tapped && r < t.rows.live; r += blockDim.x) {
    const int after = positions[r] + 1;
    for (int i = 0; t.rows.valid(r) && i < kMaxTaps; ++i) {
      if (tap_positions[i] != after) continue;
      if (tap_slots[i] < 0 || tap_slots[i] >= slots) {
        report(faults, kFaultRange);
        continue;
      }
      for (int back = 0; back < orders && back < after; ++back) *t.kept(tap_slots[i], after - 1 - back) = back ? t.before(r, back) : tokens[r];
    }
  }
  __syncthreads();
  for (int r = threadIdx.x; r < t.rows.live; r += blockDim.x)
    if (t.rows.valid(r) && !t.rows.same(r + kRingRows, sequences[r])) *t.kept(sequences[r], positions[r]) = tokens[r];
}

// Decoded rows of the table side by side. A warp a row of the table: its bytes come to shared memory by whole words, for they may lie
// beyond the link, then a lane decodes a block of the format. box: the store's answer to the last request, rows in the order of ids;
// null: a row lies where its id says. Dynamic shared memory: `room` bytes a warp, at least the row's and 32.
__global__ void table_rows(const int* live, const int* index, const uint8_t* table, float* out, int width, int rows, int n, int room,
                           const tiers::NgramMailbox* box, const uint32_t* posts, uint64_t limit_ns, uint32_t* faults) {
  using F = Layout<STRATA_TYPE>;
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ bool there;
  uint8_t* mine = shared + warp_id() * room;
  dependency_wait();
  dependency_launch();
  if (threadIdx.x == 0) {
    there = box == nullptr || wait_for_host(&box->served, *posts, limit_ns, faults);
    if (there && box != nullptr && load_acquire_system(&box->failed) == *posts) report(faults, kFaultRead);
  }
  __syncthreads();
  const int blocks = width / F::values, u = blockIdx.x * (blockDim.x / 32) + warp_id();
  if (!there || u >= *live * n) return;
  const int row = index[u], bytes = blocks * F::bytes;
  if (row < 0 || row >= rows) return report(faults, kFaultRange);
  const uint8_t* from = table + static_cast<size_t>(box == nullptr ? row : u) * bytes;
  const int before = static_cast<int>(reinterpret_cast<uint64_t>(from) & 15);
  const uint32_t* words = reinterpret_cast<const uint32_t*>(from - before);
  for (int i = before / 4 + lane_id(); i < (before + bytes + 3) / 4; i += 32) reinterpret_cast<uint32_t*>(mine)[i] = __ldcv(words + i);
  __syncwarp();
  for (int b = lane_id(); b < blocks; b += 32)
    dequantize_block<STRATA_TYPE>(mine + before + b * F::bytes, out + static_cast<size_t>(u) * width + b * F::values);
}

// Per stream sigmoid(sign(s) sqrt(max(|s|, 1e-6))) * value, s = key . query * scale; a thread block a (row, stream), one warp adds.
__global__ void ngram_gate(const int* live, const float* key, const float* query, const float* value, float* out, int width, int streams,
                           float scale) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ float gate;
  float *keys = reinterpret_cast<float*>(shared), *queries = keys + width;
  dependency_wait();
  dependency_launch();
  const int u = blockIdx.x;
  if (u >= *live * streams) return;
  const size_t at = static_cast<size_t>(u) * width;
#pragma unroll 4
  for (int i = threadIdx.x; i < width; i += blockDim.x) keys[i] = key[at + i], queries[i] = query[at + i];
  __syncthreads();
  if (warp_id() == 0) {
    const float s = staged_dot(keys, queries, width) * scale;
    const float magnitude = s < 0.0f ? -s : s, root = sqrt32(magnitude > 1e-6f ? magnitude : 1e-6f);
    if (lane_id() == 0) gate = sigmoid32(s > 0.0f ? root : s < 0.0f ? -root : 0.0f);
  }
  __syncthreads();
  value += static_cast<size_t>(u / streams) * width;
#pragma unroll 4
  for (int i = threadIdx.x; i < width; i += blockDim.x) out[at + i] = gate * value[i];
}

}  // extern "C"
