// Products of up to M rows with a quantised matrix, int8 dot products, any K: a lane is one segment of one weight row and
// runs that segment's chain in registers, so that the contract's order costs nothing in the loop; the segments of a row
// are then added in order through shared memory.
#pragma once

#include "packed.cuh"

namespace strata {

// Where a row's activations lie in shared memory: codes with four words of padding after every segment (lanes of
// neighbouring segments read the same block of theirs together), scales, and both sums of codes in a word.
struct StagedRows {
  uint32_t* codes;  // [M][row_words]
  float* scales;    // [M][blocks]
  uint32_t* sums;   // [M][blocks]
  int row_words, blocks;
};

constexpr int kSegmentPad = 4;

template <int Segs> __device__ __forceinline__ int first_block(int s, int blocks) {
  return static_cast<int>(static_cast<long long>(s) * blocks / Segs);
}

template <int M, int Segs> __device__ __forceinline__ StagedRows staged_rows(uint8_t* shared, int k) {
  StagedRows a;
  a.blocks = k / kBlock;
  a.row_words = k / 4 + kSegmentPad * Segs;
  a.codes = reinterpret_cast<uint32_t*>(shared);
  a.scales = reinterpret_cast<float*>(a.codes + M * a.row_words);
  a.sums = reinterpret_cast<uint32_t*>(a.scales + M * a.blocks);
  return a;
}

// Rows r < rows from global planes of leading dimension k; the rest of the M rows are zero.
template <int M, int Segs>
__device__ __forceinline__ void stage_rows(const StagedRows& a, const int8_t* q, const float* d, const int16_t* s, int k,
                                           int rows) {
  for (int i = threadIdx.x; i < M * (k / 16); i += blockDim.x) {
    const int row = i / (k / 16), part = i % (k / 16), b = part / 2;
    const int segment = static_cast<int>((static_cast<long long>(b + 1) * Segs - 1) / a.blocks);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (row < rows) v = *reinterpret_cast<const uint4*>(q + static_cast<size_t>(row) * k + part * 16);
    *reinterpret_cast<uint4*>(a.codes + row * a.row_words + part * 4 + kSegmentPad * segment) = v;
  }
  for (int i = threadIdx.x; i < M * a.blocks; i += blockDim.x) {
    const int row = i / a.blocks, b = i % a.blocks;
    const size_t at = static_cast<size_t>(row) * a.blocks + b;
    a.scales[i] = row < rows ? d[at] : 0.0f;
    a.sums[i] = row < rows ? reinterpret_cast<const uint32_t*>(s)[at] : 0u;
  }
}

// The first `rows` of M rows of Segs segments of Length blocks each: no division by what is not known. What the others are, nobody may read.
template <int M, int Segs, int Length>
__device__ __forceinline__ void stage_even(const StagedRows& a, const int8_t* q, const float* d, const int16_t* s, int rows) {
  constexpr int blocks = Segs * Length, words = 8 * blocks + kSegmentPad * Segs;
  for (int i = threadIdx.x; i < rows * 2 * blocks; i += blockDim.x) {
    const int m = M == 1 ? 0 : i / (2 * blocks), part = i - m * 2 * blocks;
    *reinterpret_cast<uint4*>(a.codes + m * words + 4 * part + kSegmentPad * (part / (2 * Length))) = reinterpret_cast<const uint4*>(q)[i];
  }
  for (int i = threadIdx.x; i < rows * blocks; i += blockDim.x) a.scales[i] = d[i], a.sums[i] = reinterpret_cast<const uint32_t*>(s)[i];
}

// Integer sums of a weight block times an activation block, offsets taken off, and the sums of the activation's halves.
struct BlockSums {
  int sum0, sum1, low, high;
};

// One weight block times M activation blocks. P: how a block is stored and decoded.
template <QuantType T, int M, class P = Packed<T>>
__device__ __forceinline__ void block_sums(const typename P::Raw& raw, const uint32_t* table, const StagedRows& a, int b, int segment,
                                           BlockSums (&sums)[M]) {
  const uint32_t* at = a.codes + b * 8 + kSegmentPad * segment;
  uint32_t code[8];
  P::template decode<1>(raw, table, code);
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const uint4 lo = *reinterpret_cast<const uint4*>(at + m * a.row_words);
    const uint4 hi = *reinterpret_cast<const uint4*>(at + m * a.row_words + 4);
    int sum0 = dot4(code[0], lo.x, dot4(code[1], lo.y, dot4(code[2], lo.z, dot4(code[3], lo.w, 0))));
    int sum1 = dot4(code[4], hi.x, dot4(code[5], hi.y, dot4(code[6], hi.z, dot4(code[7], hi.w, 0))));
    int low = 0, high = 0;
    if constexpr (P::kOffset != 0 || kHasMin<T>) {
      const uint32_t packed = a.sums[m * a.blocks + b];
      low = static_cast<int16_t>(packed), high = static_cast<int32_t>(packed) >> 16;
      sum0 -= P::kOffset * low;
      sum1 -= P::kOffset * high;
    }
    sums[m] = {sum0, sum1, low, high};
  }
}

// The same, and y[m] takes one chain step.
template <QuantType T, int M, class P = Packed<T>>
__device__ __forceinline__ void block_times_rows(const typename P::Raw& raw, const uint32_t* table, const StagedRows& a, int b,
                                                 int segment, float (&y)[M]) {
  BlockSums sums[M];
  block_sums<T, M, P>(raw, table, a, b, segment, sums);
  const Scales w = P::scales(raw);
#pragma unroll
  for (int m = 0; m < M; ++m)
    y[m] = block_step<T>(w, sums[m].sum0, sums[m].sum1, a.scales[m * a.blocks + b], sums[m].low, sums[m].high, y[m]);
}

// This lane's chain over its segment of weight row `row`; the first `Ahead` blocks are loaded by `load_first`, which may come
// before the activations are there. Length: blocks of every segment, where they are even and that is known; -1: no segment is longer than
// Ahead; else 0.
template <QuantType T, int M, int Segs, int Ahead, int Length = 0, class P = Packed<T>> struct SegmentChain {
  typename P::Raw raw[Ahead];
  const uint8_t* w;
  int n, blocks, row, segment, begin, end;

  __device__ __forceinline__ SegmentChain(const uint8_t* w_, int n_, int blocks_, int row_) {
    w = w_, n = n_, blocks = blocks_, row = row_;
    segment = lane_id() % Segs;
    if constexpr (Length > 0) {
      begin = segment * Length, end = begin + Length;
    } else {
      begin = first_block<Segs>(segment, blocks), end = first_block<Segs>(segment + 1, blocks);
    }
  }
  __device__ __forceinline__ void load_first() { load(raw, 0); }

  __device__ __forceinline__ void run(const uint32_t* table, const StagedRows& a, float (&y)[M]) {
#pragma unroll
    for (int m = 0; m < M; ++m) y[m] = 0.0f;
    if constexpr (Length != 0 && Length <= Ahead) {
      step(table, a, 0, y);
    } else {
#pragma unroll 1
      for (int j = 0; j < end - begin; j += Ahead) {
        typename P::Raw next[Ahead];
        load(next, j + Ahead);
        step(table, a, j, y);
#pragma unroll
        for (int i = 0; i < Ahead; ++i) raw[i] = next[i];
      }
    }
  }

 private:
  // Whether the segment has a block j.
  __device__ __forceinline__ bool has(int j) const {
    if constexpr (Length > 0) return j < Length;
    return begin + j < end;
  }
  __device__ __forceinline__ void load(typename P::Raw (&to)[Ahead], int j) {
#pragma unroll
    for (int i = 0; i < Ahead; ++i)
      if (has(j + i)) to[i] = P::load(w, n, blocks, row, begin + j + i);
  }
  __device__ __forceinline__ void step(const uint32_t* table, const StagedRows& a, int j, float (&y)[M]) {
#pragma unroll
    for (int i = 0; i < Ahead; ++i)
      if (has(j + i)) block_times_rows<T, M, P>(raw[i], table, a, begin + j + i, segment, y);
  }
};

// Adds each weight row's segments in order and hands (row of the warp's, activation row, total) to `store`. `scratch`
// holds M * 32 floats of this warp, on a border of 16 bytes. Shares: lanes of a segment, of which the last has its chain.
template <int M, int Segs, int Shares = 1, typename Store>
__device__ __forceinline__ void add_segments(const float (&y)[M], float* scratch, Store store) {
  constexpr int rows = 32 / Segs / Shares, held = 32 / Shares;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; ++m)
    if (lane_id() >= 32 - held) scratch[m * held + lane_id() - (32 - held)] = y[m];
  __syncwarp();
  for (int i = lane_id(); i < rows * M; i += 32) {
    float total = 0.0f;
    if constexpr (Segs >= 4) {
#pragma unroll
      for (int s = 0; s < Segs / 4; ++s) {
        const float4 four = reinterpret_cast<const float4*>(scratch)[i * (Segs / 4) + s];
        total = (((total + four.x) + four.y) + four.z) + four.w;
      }
    } else {
#pragma unroll
      for (int s = 0; s < Segs; ++s) total += scratch[i * Segs + s];
    }
    store(i % rows, i / rows, total);
  }
}

}  // namespace strata
