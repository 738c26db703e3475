// The experts that the rows of a step choose, each once: made by every thread block for itself from the logits.
#pragma once

#include "topk.cuh"

namespace strata {

// Items: an expert and rows that chose it, at most `Most` a time, by the first of them and its rank. In shared memory.
template <int Rows, int Experts, int Top, int Most> struct ExpertList {
  static_assert(Rows <= 8 && Experts <= 65536 && Top <= 32);
  int chosen[Rows][Top];            // by rank
  uint32_t rows[(Experts + 3) / 4];  // a byte an expert: the rows that chose it
  uint32_t begins[Rows];            // ranks that begin an item
  uint32_t items[Rows * Top];       // expert, rows << 16
  int size;

  // By the whole thread block, before anything else and a barrier.
  __device__ __forceinline__ void clear() {
    for (int i = threadIdx.x; i < (Experts + 3) / 4; i += blockDim.x) rows[i] = 0;
  }
  // By the warp that chose for `row`: lane l has the expert of rank l.
  __device__ __forceinline__ void put(int row, int expert) {
    const int rank = lane_id();
    if (rank >= Top) return;
    chosen[row][rank] = expert;
    atomicOr(rows + expert / 4, 1u << (8 * (expert % 4) + row));
  }
  // By the whole thread block, after a barrier; a barrier before items are read.
  __device__ __forceinline__ void close(int live) {
    const int warps = static_cast<int>(blockDim.x) / 32, rank = lane_id();
    const auto rows_of = [&](int row) {
      const int expert = chosen[row][min(rank, Top - 1)];
      return rows[expert / 4] >> 8 * (expert % 4) & 255u;
    };
    for (int row = warp_id(); row < live; row += warps) {
      const bool begins_here = rank < Top && __popc(rows_of(row) & ((1u << row) - 1u)) % Most == 0;
      const uint32_t mask = __ballot_sync(kFullWarp, begins_here);
      if (rank == 0) begins[row] = mask;
    }
    __syncthreads();
    for (int row = warp_id(); row < live; row += warps) {
      int at = __popc(begins[row] & ((1u << rank) - 1u));
      for (int r = 0; r < row; ++r) at += __popc(begins[r]);
      uint32_t left = rows_of(row) >> row << row, mine = 0;
#pragma unroll
      for (int m = 0; m < (Most < Rows ? Most : Rows); ++m) mine |= left & (0u - left), left &= left - 1u;
      if (begins[row] >> rank & 1u) items[at] = static_cast<uint32_t>(chosen[row][rank]) | mine << 16;
      if (row == live - 1 && rank == 0) size = at + __popc(begins[row]);
    }
  }
  // The rank of an expert that `row` chose; a warp.
  __device__ __forceinline__ int rank_of(int row, int expert) const {
    return __ffs(static_cast<int>(__ballot_sync(kFullWarp, lane_id() < Top && chosen[row][min(lane_id(), Top - 1)] == expert))) - 1;
  }
};

// The number of the lowest set bit, which it takes away.
__device__ __forceinline__ int take_bit(uint32_t& bits) {
  const int at = __ffs(static_cast<int>(bits)) - 1;
  bits &= bits - 1u;
  return at;
}

}  // namespace strata
