// The delta rule's chunk form (docs/contract.md): whole blocks of 64 rows at positions that are multiples of 64; taps at such positions
// write the state to a slot. Macro: STRATA_KEY_DIM. Grid (columns, heads), warps a
// divisor of the columns; a thread block goes through all rows.
#include "delta.cuh"

using namespace strata;

namespace {

constexpr int kChunk = 64;  // ops/step.py CHUNK_BLOCK

// What all columns of a block share; [j][i] is about row i and an earlier row j.
struct Block {
  float kk[kChunk][kChunk], qk[kChunk][kChunk];
  float log[kChunk], since[kChunk], left[kChunk], beta[kChunk];
};

struct ChunkRows {
  const float *qk, *mixed, *gates;
  int key_width, value_width, heads, h, key_at;

  __device__ __forceinline__ const float* query(int row) const { return qk + static_cast<size_t>(row) * 2 * key_width + key_at; }
  __device__ __forceinline__ const float* key(int row) const { return query(row) + key_width; }
  __device__ __forceinline__ float value(int row, int at) const {
    return mixed[static_cast<size_t>(row) * (2 * key_width + value_width) + 2 * key_width + at];
  }
};

__device__ __forceinline__ void prepare(Block& b, const ChunkRows& rows, int first) {
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int i = 0; i < kChunk; ++i) b.log[i] = total += rows.gates[(first + i) * 2 * rows.heads + rows.heads + rows.h];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kChunk; i += blockDim.x) {
    b.since[i] = exp32(b.log[i]);
    b.left[i] = exp32(b.log[kChunk - 1] - b.log[i]);
    b.beta[i] = rows.gates[(first + i) * 2 * rows.heads + rows.h];
  }
  for (int i = warp_id(); i < kChunk; i += static_cast<int>(blockDim.x) / 32) {
    Part key, query;
    key.load(rows.key(first + i)), query.load(rows.query(first + i));
    for (int j = 0; j <= i; ++j) {
      Part earlier;
      earlier.load(rows.key(first + j));
      const float between = b.log[i] - b.log[j], decay = exp32(between < 0.0f ? between : 0.0f);
      const float kk = key.dot(earlier) * decay, qk = query.dot(earlier) * decay;
      if (lane_id() == 0) b.kk[j][i] = kk, b.qk[j][i] = qk;
    }
  }
  __syncthreads();
}

// The column's state to the end of the block; lane l has the outputs of rows l and l + 32.
__device__ __forceinline__ void run_column(Part& s, const Block& b, const ChunkRows& rows, int first, int at, float (&out)[2]) {
  float x[2];
  for (int i = 0; i < kChunk; ++i) {
    Part key, query;
    key.load(rows.key(first + i)), query.load(rows.query(first + i));
    const float read = key.dot(s), seen = query.dot(s);
    if (lane_id() == i % 32) {
      x[i / 32] = fma32(-b.since[i], read, rows.value(first + i, at));
      out[i / 32] = b.since[i] * seen;
    }
  }
  const float decay = exp32(b.log[kChunk - 1]);
#pragma unroll
  for (int e = 0; e < kEach; ++e) s.at[e] = decay * s.at[e];
  for (int j = 0; j < kChunk; ++j) {
    const float d = b.beta[j] * __shfl_sync(kFullWarp, j < 32 ? x[0] : x[1], j % 32), kept = b.left[j] * d;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane_id() + 32 * half;
      if (i > j) x[half] = fma32(-b.kk[j][i], d, x[half]);
      if (i >= j) out[half] = fma32(b.qk[j][i], d, out[half]);
    }
    Part key;
    key.load(rows.key(first + j));
#pragma unroll
    for (int e = 0; e < kEach; ++e) s.at[e] = fma32(kept, key.at[e], s.at[e]);
  }
}

}  // namespace

extern "C" __global__ void delta_chunk(const int* live, const int* positions, const int* sequences, const int* commits, float* state,
                                       float* pending, const float* qk, const float* mixed, const float* gates, float* out,
                                       const int* tap_positions, const int* tap_slots, int key_heads, int heads, int value_dim, int tiled,
                                       int slots, uint32_t* faults) {
  __shared__ Block block;
  dependency_wait();
  dependency_launch();
  const Delta delta{{positions, sequences, *live, slots}, state, pending, key_heads, heads, value_dim, tiled};
  const int h = blockIdx.y, v = blockIdx.x * (blockDim.x / 32) + warp_id();
  const ChunkRows rows{qk, mixed, gates, delta.key_width(), delta.value_width(), heads, h, delta.key_head(h) * kKeyDim};
  for (int first = 0, count; first < delta.rows.live; first += count) {
    count = delta.rows.group_rows(first);
    const int sequence = sequences[first], position = positions[first];
    Part s;
    if (!delta.rows.valid(first) || count % kChunk != 0 || position % kChunk != 0 || !settle(delta, commits, sequence, position, h, v, s)) {
      report(faults, kFaultRange);
      continue;
    }
    const size_t column = (static_cast<size_t>(h) * value_dim + v) * kKeyDim, slot = static_cast<size_t>(heads) * value_dim * kKeyDim;
    for (int at = 0; at < count; at += kChunk) {
      prepare(block, rows, first + at);
      float o[2];
      run_column(s, block, rows, first + at, h * value_dim + v, o);
      for (int half = 0; half < 2; ++half)
        out[static_cast<size_t>(first + at + 32 * half + lane_id()) * delta.value_width() + h * value_dim + v] = o[half];
      for (int i = 0; i < kMaxTaps; ++i) {
        if (tap_positions[i] != position + at + kChunk) continue;
        if (tap_slots[i] >= 0 && tap_slots[i] < slots) s.store(state + tap_slots[i] * slot + column);
        if (tap_slots[i] >= slots) report(faults, kFaultRange);
      }
    }
    s.store(state + sequence * slot + column);
  }
}
