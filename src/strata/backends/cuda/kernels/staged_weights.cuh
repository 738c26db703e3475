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
  // `from`(r): where the bytes of row r lie, less those of rows before it.
  template <int Each, class From> static __device__ __forceinline__ void copy_padded(uint8_t* to, From from) {
    constexpr int copies = kCells * Each / 16;
#pragma unroll
    for (int i = lane_id(); i < copies; i += 32) copy_async<16>(to + 16 * i + 16 / Each * i / Length * kPad, from(i * kRows / copies) + 16 * i);
  }
  template <int Bytes, int Each, class From> static __device__ __forceinline__ void copy(uint8_t* to, From from) {
    constexpr int copies = Bytes / Each;
#pragma unroll
    for (int i = lane_id(); i < copies; i += 32) copy_async<Each>(to + Each * i, from(i * kRows / copies) + Each * i);
  }
};

// Rows of a matrix of Blocks blocks a row: neighbours from `first` on, or of a list. at: a plane of `bytes` for every `blocks` blocks, as
// StagedShape's copies want it. Listed rows are whole copies of 16 bytes, and of 4 of what has a piece for 8 blocks.
template <int Blocks> struct RowsFrom {
  size_t first;
  __device__ __forceinline__ auto at(const uint8_t* plane, int bytes, int blocks = 1) const {
    const uint8_t* from = plane + first * Blocks * bytes / blocks;
    return [from](int) { return from; };
  }
};
template <int Blocks, int Rows> struct RowsListed {
  static_assert(Blocks % 16 == 0, "whole copies of a row");
  int ids[Rows];
  __device__ __forceinline__ auto at(const uint8_t* plane, int bytes, int blocks = 1) const {
    return [this, plane, each = Blocks * bytes / blocks](int r) {
      int id = ids[0];
#pragma unroll
      for (int i = 1; i < Rows; ++i) id = r == i ? ids[i] : id;
      return plane + static_cast<long long>(id - r) * each;
    };
  }
};

// `at`: kBytes of this warp, on a border of 16. copy: starts copying rows [first, first + kRows) of n; copy_rows: those of RowsFrom or RowsListed.
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
    copy_rows(w, n, RowsFrom<S::kBlocks>{static_cast<size_t>(first)});
  }
  template <class Rows> __device__ __forceinline__ void copy_rows(const uint8_t* w, int n, const Rows& rows) const {
    const size_t cells = static_cast<size_t>(n) * S::kBlocks;
    S::template copy_padded<16>(at, rows.at(w, 16));
    S::template copy_padded<8>(at + kHigh, rows.at(w + cells * 16, 8));
    S::template copy<2 * S::kCells, 16>(at + kScale, rows.at(w + cells * 24, 2));
    S::template copy<S::kCells / 4, 4>(at + kD, rows.at(w + cells * 26, 2, 8));
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
    copy_rows(w, n, RowsFrom<S::kBlocks>{static_cast<size_t>(first)});
  }
  template <class Rows> __device__ __forceinline__ void copy_rows(const uint8_t* w, int n, const Rows& rows) const {
    const size_t cells = static_cast<size_t>(n) * S::kBlocks;
    const auto codes = rows.at(w, 32);
#pragma unroll
    for (int i = lane_id(); i < 2 * S::kCells; i += 32) copy_async<16>(at + 16 * (i + i / (2 * Length)), codes(i / (2 * S::kBlocks)) + 16 * i);
    S::template copy<2 * S::kCells, 16>(at + kD, rows.at(w + cells * 32, 2));
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
    copy_rows(w, n, RowsFrom<S::kBlocks>{static_cast<size_t>(first)});
  }
  template <class Rows> __device__ __forceinline__ void copy_rows(const uint8_t* w, int n, const Rows& rows) const {
    const size_t cells = static_cast<size_t>(n) * S::kBlocks;
    S::template copy_padded<8>(at, rows.at(w, 8));
    S::template copy<4 * S::kCells, 16>(at + kSigns, rows.at(w + cells * 8, 4));
    S::template copy<S::kCells / 4, 4>(at + kD, rows.at(w + cells * 12, 2, 8));
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
    copy_rows(w, n, RowsFrom<S::kBlocks>{static_cast<size_t>(first)});
  }
  template <class Rows> __device__ __forceinline__ void copy_rows(const uint8_t* w, int n, const Rows& rows) const {
    const size_t cells = static_cast<size_t>(n) * S::kBlocks;
    S::template copy_padded<8>(at, rows.at(w, 8));
    S::template copy<S::kCells, 16>(at + kD, rows.at(w + cells * 8, 2, 2));
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
