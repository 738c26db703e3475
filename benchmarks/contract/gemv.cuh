// Products of 1 to 8 rows with packed weights, int8 dot products (dp4a).
//
// A lane is one segment of one weight row: it runs that segment's chain in registers, so the contract's order costs
// nothing in the loop; the segments of a row are then added in order through shared memory. Weights go from global memory
// to registers ahead of everything the previous node produced.
#pragma once

#include "packed.cuh"

namespace strata {

// Activations in shared memory: codes with four words of padding after every segment (segments of a row are read by
// neighbouring lanes, which would otherwise meet in the same banks), scales, and sums of codes per 16 in one word.
template <int K, int M, int Pad = 4> struct Activations {
  static constexpr int kBlocks = K / kBlock, kSegs = segments(kBlocks);
  static constexpr int kRowWords = K / 4 + Pad * kSegs;
  alignas(16) uint32_t codes[M][kRowWords];
  float scale[M][kBlocks];
  uint32_t sums[M][kBlocks];

  static __device__ __forceinline__ int word(int b) {
    int segment = 0;  // the s with segment_begin(s) <= b
    if constexpr (kBlocks % kSegs == 0) {
      segment = b / (kBlocks / kSegs);
    } else {
      segment = ((b + 1) * kSegs - 1) / kBlocks;
    }
    return Pad == 0 ? b * 4 : b * 8 + Pad * segment;
  }

  // Words from a block's first half to its second. Without padding (lanes read neighbouring blocks) halves lie apart.
  static constexpr int kHalf = Pad == 0 ? kBlocks * 4 : 4;

  // Rows r < rows from global planes of leading dimension K; the rest of the M rows are zero.
  __device__ __forceinline__ void stage(const int8_t* q, const float* d, const int16_t* s, int rows) {
    for (int i = threadIdx.x; i < M * (K / 16); i += blockDim.x) {
      const int row = i / (K / 16), part = i % (K / 16);
      uint4 v = make_uint4(0, 0, 0, 0);
      if (row < rows) v = *reinterpret_cast<const uint4*>(q + static_cast<size_t>(row) * K + part * 16);
      *reinterpret_cast<uint4*>(&codes[row][word(part / 2) + kHalf * (part % 2)]) = v;
    }
    for (int i = threadIdx.x; i < M * kBlocks; i += blockDim.x) {
      const int row = i / kBlocks, b = i % kBlocks;
      scale[row][b] = row < rows ? d[static_cast<size_t>(row) * kBlocks + b] : 0.0f;
      sums[row][b] = row < rows ? reinterpret_cast<const uint32_t*>(s)[static_cast<size_t>(row) * kBlocks + b] : 0u;
    }
  }
};

// One weight block times M activation blocks: y[m] takes one chain step.
template <QuantType T, int Copies, int K, int M, int Pad>
__device__ __forceinline__ void block_rows(const typename Packed<T>::Raw& raw, const uint32_t* table,
                                           const Activations<K, M, Pad>& a, int b, float (&y)[M]) {
  uint32_t code[8];
  Packed<T>::template decode<Copies>(raw, table, code);
  const Scales w = Packed<T>::scales(raw);
  const int at = Activations<K, M, Pad>::word(b);
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const uint4 lo = *reinterpret_cast<const uint4*>(&a.codes[m][at]);
    const uint4 hi = *reinterpret_cast<const uint4*>(&a.codes[m][at + Activations<K, M, Pad>::kHalf]);
    int sum0 = dot4(code[0], lo.x, dot4(code[1], lo.y, dot4(code[2], lo.z, dot4(code[3], lo.w, 0))));
    int sum1 = dot4(code[4], hi.x, dot4(code[5], hi.y, dot4(code[6], hi.z, dot4(code[7], hi.w, 0))));
    int low = 0, high = 0;
    if constexpr (Packed<T>::kOffset != 0 || kHasMin<T>) {
      const uint32_t packed = a.sums[m][b];
      low = static_cast<int16_t>(packed), high = static_cast<int32_t>(packed) >> 16;
      sum0 -= Packed<T>::kOffset * low;
      sum1 -= Packed<T>::kOffset * high;
    }
    y[m] = block_step<T>(w, sum0, sum1, a.scale[m][b], low, high, y[m]);
  }
}

// Geometry of a warp's tile: `kRows` weight rows of `kSegs` lanes each.
template <int K> struct Tile {
  static constexpr int kBlocks = K / kBlock, kSegs = segments(kBlocks), kRows = 32 / kSegs;
  static constexpr int kLongest = (kBlocks + kSegs - 1) / kSegs;  // blocks of the longest segment
  static constexpr int kAhead = kLongest <= 6 ? kLongest : 4;     // blocks loaded before the first is used
  static constexpr bool kEven = kBlocks % kSegs == 0;

  // This lane's segment, and whether it has a block j (always, where segments are even and j is under kLongest).
  static __device__ __forceinline__ int begin() {
    const int s = lane_id() % kSegs;
    return kEven ? s * kLongest : segment_begin(s, kBlocks);
  }
  static __device__ __forceinline__ bool has(int begin, int j) {
    if constexpr (kEven) return j < kLongest;
    return begin + j < segment_begin(lane_id() % kSegs + 1, kBlocks);
  }
};

// The chains of this lane's segment, first `kAhead` blocks already loaded.
template <QuantType T, int K, int M, int Copies>
__device__ __forceinline__ void segment_chain(typename Packed<T>::Raw (&raw)[Tile<K>::kAhead], const uint8_t* w, int n,
                                              int row, const uint32_t* table, const Activations<K, M>& a, float (&y)[M]) {
  constexpr int blocks = Tile<K>::kBlocks, ahead = Tile<K>::kAhead;
  const int begin = Tile<K>::begin();
#pragma unroll
  for (int m = 0; m < M; ++m) y[m] = 0.0f;
#pragma unroll 1
  for (int j = 0; j < Tile<K>::kLongest; j += ahead) {
    typename Packed<T>::Raw next[ahead];
    if (j + ahead < Tile<K>::kLongest) {
#pragma unroll
      for (int i = 0; i < ahead; ++i)
        if (Tile<K>::has(begin, j + ahead + i)) next[i] = Packed<T>::load(w, n, blocks, row, begin + j + ahead + i);
    }
#pragma unroll
    for (int i = 0; i < ahead; ++i)
      if (Tile<K>::has(begin, j + i))
        block_rows<T, Copies>(raw[i], table, a, begin + j + i, y);
    if (j + ahead < Tile<K>::kLongest) {
#pragma unroll
      for (int i = 0; i < ahead; ++i) raw[i] = next[i];
    }
  }
}

template <QuantType T, int K>
__device__ __forceinline__ void load_ahead(typename Packed<T>::Raw (&raw)[Tile<K>::kAhead], const uint8_t* w, int n, int row) {
  const int begin = Tile<K>::begin();
#pragma unroll
  for (int i = 0; i < Tile<K>::kAhead; ++i)
    if (Tile<K>::has(begin, i)) raw[i] = Packed<T>::load(w, n, Tile<K>::kBlocks, row, begin + i);
}

// Adds each row's segments in order and hands (row of the tile, activation row, total) to `store`, one lane each.
// `scratch` holds M * 32 floats of this warp, 16-byte aligned.
template <int K, int M, typename Store>
__device__ __forceinline__ void segment_totals(const float (&y)[M], float* scratch, Store store) {
  constexpr int segs = Tile<K>::kSegs, rows = Tile<K>::kRows;
#pragma unroll
  for (int m = 0; m < M; ++m) scratch[m * 32 + lane_id()] = y[m];
  __syncwarp();
  for (int i = lane_id(); i < rows * M; i += 32) {
    float total = 0.0f;
    if constexpr (segs >= 4) {
#pragma unroll
      for (int s = 0; s < segs / 4; ++s) {
        const float4 four = reinterpret_cast<const float4*>(scratch)[i * (segs / 4) + s];
        total = (((total + four.x) + four.y) + four.z) + four.w;
      }
    } else {
#pragma unroll
      for (int s = 0; s < segs; ++s) total += scratch[i * segs + s];
    }
    store(i % rows, i / rows, total);
  }
  __syncwarp();
}

// y[m][row], m < rows <= M, for the Tile<K>::kRows weight rows of every warp of the grid.
template <QuantType T, int K, int M, int Copies>
__device__ __forceinline__ void gemv(const uint8_t* w, int n, const int8_t* q, const float* d, const int16_t* sums,
                                     int rows, float* y) {
  STRATA_DYNAMIC_SHARED(shared);
  constexpr int table_words = Packed<T>::kTableWords * Copies;
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  float* scratch = reinterpret_cast<float*>(table + table_words) + warp_id() * M * 32;
  auto& a = *reinterpret_cast<Activations<K, M>*>(shared + 4 * table_words + blockDim.x * M * 4);
  const int first = (blockIdx.x * (blockDim.x / 32) + warp_id()) * Tile<K>::kRows;
  const int row = min(first + lane_id() / Tile<K>::kSegs, n - 1);
  typename Packed<T>::Raw raw[Tile<K>::kAhead];
  load_ahead<T, K>(raw, w, n, row);
  dependency_launch();  // the next node's weights may start to flow; its reads of our rows wait for us to end
  Packed<T>::template fill<Copies>(table);
  dependency_wait();
  a.stage(q, d, sums, rows);
  __syncthreads();
  float part[M];
  segment_chain<T, K, M, Copies>(raw, w, n, row, table + lane_id() % Copies, a, part);
  segment_totals<K, M>(part, scratch, [&](int r, int m, float total) {
    if (m < rows && first + r < n) y[static_cast<size_t>(m) * n + first + r] = total;
  });
}

}  // namespace strata
