// A warp's weight rows in shared memory: copied whole lines at a time, all of them on their way before the activations are there. Loads
// straight into a lane's registers read 2 to 16 bytes of every line they touch, and only as many as registers hold.
#pragma once

#include "product.cuh"

namespace strata {

// Rows of Segs segments of Length blocks each; 32 / Segs rows a warp. Planes as in packed.cuh; sixteen bytes of padding after every
// segment of an even number of blocks, so that lanes of neighbouring segments meet in no bank.
template <QuantType T, int Segs, int Length> struct StagedWeights;

template <int Segs, int Length> struct StagedWeights<QuantType::Q6_K, Segs, Length> {
  using P = Packed<QuantType::Q6_K>;
  static constexpr int kRows = 32 / Segs, kBlocks = Segs * Length, kCells = kRows * kBlocks, kPad = Length % 2 == 0 ? 16 : 0;
  static constexpr int kHigh = 16 * kCells + 32 * kPad, kScale = kHigh + 8 * kCells + 32 * kPad, kD = kScale + 2 * kCells;
  static constexpr int kBytes = (kD + kCells / 4 + 15) / 16 * 16;
  static_assert(kCells % 16 == 0 && kBlocks % 8 == 0, "whole copies");

  uint8_t* at;  // kBytes of this warp, on a border of 16

  // Starts copying rows [first, first + kRows) of n.
  __device__ __forceinline__ void copy(const uint8_t* w, int n, int first) const {
    const size_t cells = static_cast<size_t>(n) * kBlocks, begin = static_cast<size_t>(first) * kBlocks;
#pragma unroll
    for (int i = lane_id(); i < kCells; i += 32) copy_async<16>(at + 16 * i + i / Length * kPad, w + (begin + i) * 16);
    const uint8_t* high = w + cells * 16 + begin * 8;
#pragma unroll
    for (int i = lane_id(); i < kCells / 2; i += 32) copy_async<16>(at + kHigh + 16 * i + 2 * i / Length * kPad, high + 16 * i);
    const uint8_t *scale = w + cells * 24 + begin * 2, *d = w + cells * 26 + begin / 4;
    for (int i = lane_id(); i < kCells / 8; i += 32) copy_async<16>(at + kScale + 16 * i, scale + 16 * i);
    for (int i = lane_id(); i < kCells / 16; i += 32) copy_async<4>(at + kD + 4 * i, d + 4 * i);
  }

  // Block j of this lane's segment.
  __device__ __forceinline__ P::Raw block(int j) const {
    const int segment = lane_id(), b = segment * Length + j;
    const uint8_t* padded = at + segment * kPad;
    return {*reinterpret_cast<const uint4*>(padded + 16 * b), *reinterpret_cast<const uint2*>(padded + kHigh + 8 * b),
            *reinterpret_cast<const uint16_t*>(at + kScale + 2 * b), *reinterpret_cast<const uint16_t*>(at + kD + b / 8 * 2)};
  }
};

// What SegmentChain (product.cuh) is, of such rows.
template <QuantType T, int M, int Segs, int Length> struct StagedChain {
  StagedWeights<T, Segs, Length> weights;

  __device__ __forceinline__ void run(const uint32_t* table, const StagedRows& a, float (&y)[M]) const {
    copies_wait();
    __syncwarp();
    const int segment = lane_id() % Segs;
#pragma unroll
    for (int m = 0; m < M; ++m) y[m] = 0.0f;
#pragma unroll(Length <= 6 ? Length : 4)
    for (int j = 0; j < Length; ++j) block_times_rows<T, M>(weights.block(j), table, a, segment * Length + j, segment, y);
  }
};

}  // namespace strata
