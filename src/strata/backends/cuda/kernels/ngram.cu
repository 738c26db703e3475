// Hashed n-grams (ops/ngram.py): table rows of a token's n-grams, their values, and their gate.
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

// One thread block, a thread a (row, order); old tokens are read before new ones are kept.
__global__ void ngram_rows(const int* live, const int* positions, const int* sequences, const int* tap_positions, const int* tap_slots,
                           const int* tokens, const uint64_t* multipliers, const uint64_t* sizes, const uint64_t* offsets, int* history,
                           int* out, int size, int heads, int eos, int slots, int tapped, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
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
  }
  __syncthreads();
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

// Decoded rows of the table side by side; a thread a block of the format.
__global__ void table_rows(const int* live, const int* index, const uint8_t* table, float* out, int width, int rows, int n,
                           uint32_t* faults) {
  using F = Layout<STRATA_TYPE>;
  dependency_wait();
  dependency_launch();
  const int blocks = width / F::values, i = blockIdx.x * blockDim.x + threadIdx.x, u = i / blocks;
  if (u >= *live * n) return;
  const int row = index[u];
  if (row < 0 || row >= rows) return report(faults, kFaultRange);
  const int b = i % blocks;
  dequantize_block<STRATA_TYPE>(table + (static_cast<size_t>(row) * blocks + b) * F::bytes,
                                out + static_cast<size_t>(u) * width + b * F::values);
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
