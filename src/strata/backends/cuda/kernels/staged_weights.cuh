// A warp's weight rows in shared memory: copied whole lines at a time, all of them on their way before the activations are there. Loads
// straight into a lane's registers read 2 to 16 bytes of every line they touch, and only as many as registers hold.
#pragma once

#include "product.cuh"

namespace strata {

// Rows of Segs segments of Length blocks each, 32 / Segs of them a warp. Planes as in packed.cuh;
// sixteen bytes of padding after every segment of an even number of blocks in planes of 16 and 8 bytes, so that lanes of neighbouring
// segments meet in no bank.
template <int Segs, int Length> struct StagedShape {
  static constexpr int kRows = 32 / Segs, kBlocks = Segs * Length, kCells = kRows * kBlocks;
  static constexpr int kPad = Length % 2 == 0 ? 16 : 0;
  static constexpr int kRoom8 = 8 * kCells + 32 * kPad, kRoom16 = 16 * kCells + 32 * kPad;
  static_assert(kCells % 16 == 0, "whole copies");

  // This lane's block j among the warp's.
  static __device__ __forceinline__ int cell(int j) { return lane_id() * Length + j; }

  // Start copying the warp's bytes of a plane: of 16 or 8 a block with padding, or `Bytes` in all without, `Each` at a time.
  template <int Each> static __device__ __forceinline__ void copy_padded(uint8_t* to, const uint8_t* from) {
#pragma unroll
    for (int i = lane_id(); i < kCells * Each / 16; i += 32) copy_async<16>(to + 16 * i + 16 / Each * i / Length * kPad, from + 16 * i);
  }
  template <int Bytes, int Each> static __device__ __forceinline__ void copy(uint8_t* to, const uint8_t* from) {
#pragma unroll
    for (int i = lane_id(); i < Bytes / Each; i += 32) copy_async<Each>(to + Each * i, from + Each * i);
  }
};

// `at`: kBytes of this warp, on a border of 16. copy: starts copying rows [first, first + kRows) of n.
// block: block j of this lane's segment.
template <QuantType T, int Segs, int Length> struct StagedWeights;

template <int Segs, int Length> struct StagedWeights<QuantType::Q6_K, Segs, Length> : StagedShape<Segs, Length> {
  using S = StagedShape<Segs, Length>;
  static constexpr int kHigh = S::kRoom16, kScale = kHigh + S::kRoom8, kD = kScale + 2 * S::kCells;
  static constexpr int kBytes = (kD + S::kCells / 4 + 15) / 16 * 16;
  static_assert(S::kBlocks % 8 == 0, "whole blocks of the file");
  uint8_t* at;
  __device__ __forceinline__ StagedWeights(uint8_t* room) : at(room) {}

  __device__ __forceinline__ void copy(const uint8_t* w, int n, int first) const {
    const size_t cells = static_cast<size_t>(n) * S::kBlocks, begin = static_cast<size_t>(first) * S::kBlocks;
    S::template copy_padded<16>(at, w + begin * 16);
    S::template copy_padded<8>(at + kHigh, w + cells * 16 + begin * 8);
    S::template copy<2 * S::kCells, 16>(at + kScale, w + cells * 24 + begin * 2);
    S::template copy<S::kCells / 4, 4>(at + kD, w + cells * 26 + begin / 4);
  }
  __device__ __forceinline__ Packed<QuantType::Q6_K>::Raw block(int j) const {
    const int b = S::cell(j);
    const uint8_t* padded = at + lane_id() * S::kPad;
    return {*reinterpret_cast<const uint4*>(padded + 16 * b), *reinterpret_cast<const uint2*>(padded + kHigh + 8 * b),
            *reinterpret_cast<const uint16_t*>(at + kScale + 2 * b), *reinterpret_cast<const uint16_t*>(at + kD + b / 8 * 2)};
  }
};

// Its codes have padding after every segment, even or not.
template <int Segs, int Length> struct StagedWeights<QuantType::Q8_0, Segs, Length> : StagedShape<Segs, Length> {
  using S = StagedShape<Segs, Length>;
  static constexpr int kD = 32 * S::kCells + 32 * 16, kBytes = kD + 2 * S::kCells;
  uint8_t* at;
  __device__ __forceinline__ StagedWeights(uint8_t* room) : at(room) {}

  __device__ __forceinline__ void copy(const uint8_t* w, int n, int first) const {
    const size_t cells = static_cast<size_t>(n) * S::kBlocks, begin = static_cast<size_t>(first) * S::kBlocks;
    const uint8_t* codes = w + begin * 32;
#pragma unroll
    for (int i = lane_id(); i < 2 * S::kCells; i += 32) copy_async<16>(at + 16 * (i + i / (2 * Length)), codes + 16 * i);
    S::template copy<2 * S::kCells, 16>(at + kD, w + cells * 32 + begin * 2);
  }
  __device__ __forceinline__ Packed<QuantType::Q8_0>::Raw block(int j) const {
    const int b = S::cell(j);
    const uint4* codes = reinterpret_cast<const uint4*>(at + 32 * b + 16 * lane_id());
    return {codes[0], codes[1], *reinterpret_cast<const uint16_t*>(at + kD + 2 * b)};
  }
};

template <int Segs, int Length> struct StagedWeights<QuantType::IQ3_XXS, Segs, Length> : StagedShape<Segs, Length> {
  using S = StagedShape<Segs, Length>;
  static constexpr int kSigns = S::kRoom8, kD = kSigns + 4 * S::kCells, kBytes = (kD + S::kCells / 4 + 15) / 16 * 16;
  static_assert(S::kBlocks % 8 == 0, "whole blocks of the file");
  uint8_t* at;
  __device__ __forceinline__ StagedWeights(uint8_t* room) : at(room) {}

  __device__ __forceinline__ void copy(const uint8_t* w, int n, int first) const {
    const size_t cells = static_cast<size_t>(n) * S::kBlocks, begin = static_cast<size_t>(first) * S::kBlocks;
    S::template copy_padded<8>(at, w + begin * 8);
    S::template copy<4 * S::kCells, 16>(at + kSigns, w + cells * 8 + begin * 4);
    S::template copy<S::kCells / 4, 4>(at + kD, w + cells * 12 + begin / 4);
  }
  __device__ __forceinline__ Packed<QuantType::IQ3_XXS>::Raw block(int j) const {
    const int b = S::cell(j);
    return {*reinterpret_cast<const uint2*>(at + lane_id() * S::kPad + 8 * b), *reinterpret_cast<const uint32_t*>(at + kSigns + 4 * b),
            *reinterpret_cast<const uint16_t*>(at + kD + b / 8 * 2)};
  }
};

template <int Segs, int Length> struct StagedWeights<QuantType::Q2_0, Segs, Length> : StagedShape<Segs, Length> {
  using S = StagedShape<Segs, Length>;
  static constexpr int kD = S::kRoom8, kBytes = kD + S::kCells;
  static_assert(S::kBlocks % 2 == 0, "whole blocks of the file");
  uint8_t* at;
  __device__ __forceinline__ StagedWeights(uint8_t* room) : at(room) {}

  __device__ __forceinline__ void copy(const uint8_t* w, int n, int first) const {
    const size_t cells = static_cast<size_t>(n) * S::kBlocks, begin = static_cast<size_t>(first) * S::kBlocks;
    S::template copy_padded<8>(at, w + begin * 8);
    S::template copy<S::kCells, 16>(at + kD, w + cells * 8 + begin);
  }
  __device__ __forceinline__ Packed<QuantType::Q2_0>::Raw block(int j) const {
    const int b = S::cell(j);
    return {*reinterpret_cast<const uint2*>(at + lane_id() * S::kPad + 8 * b), *reinterpret_cast<const uint16_t*>(at + kD + b / 2 * 2)};
  }
};

// Blocks of a segment that a turn of the loop takes.
#ifndef STRATA_CHAIN_UNROLL
#define STRATA_CHAIN_UNROLL 5
#endif

// What SegmentChain (product.cuh) is, of such rows.
template <QuantType T, int M, int Segs, int Length, class P = Packed<T>> struct StagedChain {
  StagedWeights<T, Segs, Length> weights;
  __device__ __forceinline__ StagedChain(uint8_t* room) : weights(room) {}

  __device__ __forceinline__ void run(const uint32_t* table, const StagedRows& a, float (&y)[M]) const {
    copies_wait();
    __syncwarp();
    chain(table, a, y);
  }
  // The same of weights that are there.
  __device__ __forceinline__ void chain(const uint32_t* table, const StagedRows& a, float (&y)[M]) const {
    const int segment = lane_id() % Segs;
#pragma unroll
    for (int m = 0; m < M; ++m) y[m] = 0.0f;
#pragma unroll(STRATA_CHAIN_UNROLL)
    for (int j = 0; j < Length; ++j) block_times_rows<T, M, P>(weights.block(j), table, a, segment * Length + j, segment, y);
  }
};

}  // namespace strata
