// What wide.cuh asks of a format, its images in memory, and where tiles come from.
//
// An image holds two 32-blocks of 64 weight rows or of 64 tokens, as shared memory has them; images of 64 rows or tokens lie one after
// another along K, an even number of them.
#pragma once

#include "packed.cuh"

namespace strata {

// Sub: blocks of half the codes that a block is taken as (2 where a format has float scales per 16); Halves: two integer sub-scales;
// Terms of a code times its sub-scale; Min: minimums a block.
template <int Sub, bool Halves, int Terms, int Min> struct WideFormat {
  static constexpr int kSub = Sub, kTerms = Terms, kMin = Min;
  static constexpr bool kHalves = Halves;
};
template <QuantType T> constexpr bool kWideHalves = kSteps<T> == Steps::halves;
template <QuantType T> constexpr int kWideMin = !kHasMin<T> ? 0 : kWideHalves<T> ? 2 : 1;
template <QuantType T>
using WideFormatOf = WideFormat<kSteps<T> == Steps::scale16 ? 2 : 1, kWideHalves<T>, T == QuantType::Q6_K ? 2 : 1, kWideMin<T>>;

constexpr int kSlab = 64;  // rows or tokens of an image

// Images along K.
__device__ __forceinline__ int image_count(int blocks) { return (blocks + 3) / 4 * 2; }

// Weights: codes plus 128, float scales, and where a format has them f16 x 2 sub-scales, minimums (or their factor), f16 x 2 minimums.
template <class F> struct alignas(16) RowImage {
  static constexpr int kS = 2 * F::kSub, kM = kS + (F::kHalves ? 2 : 0), kMins = kM + (F::kMin > 0 ? 2 : 0), kLines = kMins + (F::kMin == 2 ? 2 : 0);
  uint8_t codes[kSlab * 64];
  uint32_t line[kLines][kSlab];  // in pair_order: w[pass], s[block], m[block], mins[block]
};

// Tokens: codes as f16 in slot_order, 128 bytes a token, parts of 16 bytes at part ^ token % 8; scales; d_a * sum of codes, or sums of
// codes of both halves, int16 x 2. The last are copied where a format asks for them.
struct alignas(16) TokenImage {
  uint8_t x[kSlab * 128];
  float d[2][kSlab];  // in four_order
  uint32_t sum[2][kSlab];
};
constexpr int kTokenBytes = sizeof(TokenImage), kTokenBytesWithoutSums = kTokenBytes - 2 * 4 * kSlab;

// Where a weight row's scales lie in 16 rows: rows g and g + 8 side by side.
__device__ __forceinline__ int pair_order(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }
// Where a token's scales lie in 16 tokens: tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9 side by side.
__device__ __forceinline__ int four_order(int token) { return (token & ~15) | (token & 6) << 1 | (token >> 3 & 1) << 1 | (token & 1); }
// Where codes of block b of a row lie in its 64 bytes: four rows' 32 bytes fill the banks.
__device__ __forceinline__ int code_offset(int row, int b) { return row * 64 + ((b ^ (row >> 1 & 1)) << 5); }

// A stored code plus 128.
template <QuantType T, class P> __device__ __forceinline__ uint32_t biased(uint32_t codes) {
  if constexpr (P::kOffset == 0) return codes ^ 0x80808080u;
  return (codes | 0x80808080u) - 0x01010101u * P::kOffset;
}
__device__ __forceinline__ uint32_t two_halves(int low, int high) {
  return float_half(static_cast<float>(low)) | static_cast<uint32_t>(float_half(static_cast<float>(high))) << 16;
}

// Scales of block b of a row: those that belong to its half `Half`, as DecodedRows shares the work; 2: all.
template <QuantType T, int Half> __device__ __forceinline__ void put_scales(RowImage<WideFormatOf<T>>& to, int row, int b, const Scales& w) {
  using F = WideFormatOf<T>;
  using I = RowImage<F>;
  const int at = pair_order(row);
  if constexpr (F::kSub == 2) {
    if constexpr (Half != 1) to.line[2 * b][at] = float_bits(w.w0);
    if constexpr (Half != 0) to.line[2 * b + 1][at] = float_bits(w.w1);
  } else if constexpr (Half != 1) {
    to.line[b][at] = float_bits(w.w0);
  }
  if constexpr (F::kHalves && Half != 0) to.line[I::kS + b][at] = two_halves(w.s0, w.s1);
  if constexpr (F::kMin > 0 && Half != 0) to.line[I::kM + b][at] = float_bits(w.m);
  if constexpr (F::kMin == 2 && Half != 1) to.line[I::kMins + b][at] = two_halves(w.m0, w.m1);
}

// ---- tiles from images -------------------------------------------------------------------------------------------

// Copies of whole images to a stage: a thread asks for them where copies are bulk, else all threads share them.
template <int Bytes, int Threads> __device__ __forceinline__ void copy_image(void* to, const void* from, [[maybe_unused]] uint64_t* barrier) {
#if STRATA_BULK
  if (threadIdx.x == 0) copy_bulk(to, from, Bytes, barrier);
#else
#pragma unroll
  for (int i = 0; i < (Bytes + 16 * Threads - 1) / (16 * Threads); ++i) {
    const int at = 16 * (static_cast<int>(threadIdx.x) + i * Threads);
    if (at < Bytes) copy_async<16>(static_cast<uint8_t*>(to) + at, static_cast<const uint8_t*>(from) + at);
  }
#endif
}

// Weights of a tile: images from its first slab on, `count` a slab.
template <class F> struct ImageRows {
  const RowImage<F>* images;
  int count;
  template <class Tile> static constexpr int kBytes = Tile::kDepth * Tile::kRowGroups * sizeof(RowImage<F>);

  template <class Tile> __device__ __forceinline__ void first(const Tile&) const {}
  template <class Tile> __device__ __forceinline__ void fetch(const Tile&, int) const {}
  template <class Tile> __device__ __forceinline__ void put(const Tile&, typename Tile::Stage&) const {}
  template <class Tile> __device__ __forceinline__ void copy(const Tile&, typename Tile::Stage& to, int i, uint64_t* barrier) const {
#pragma unroll
    for (int u = 0; u < Tile::kDepth * Tile::kRowGroups; ++u) {
      const int depth = u / Tile::kRowGroups, slab = u % Tile::kRowGroups;
      const auto* from = images + static_cast<size_t>(slab) * count + i * Tile::kDepth + depth;
      copy_image<sizeof(RowImage<F>), Tile::kThreads>(&to.rows[depth][slab], from, barrier);
    }
  }
};

template <class F> struct ImageTokens {
  const TokenImage* images;
  int count;
  static constexpr int kEach = F::kMin > 0 ? kTokenBytes : kTokenBytesWithoutSums;
  template <class Tile> static constexpr int kBytes = Tile::kDepth * Tile::kSlabs * kEach;

  template <class Tile> __device__ __forceinline__ void copy(const Tile&, typename Tile::Stage& to, int i, uint64_t* barrier) const {
#pragma unroll
    for (int u = 0; u < Tile::kDepth * Tile::kSlabs; ++u) {
      const int depth = u / Tile::kSlabs, slab = u % Tile::kSlabs;
      const auto* from = images + static_cast<size_t>(slab) * count + i * Tile::kDepth + depth;
      copy_image<kEach, Tile::kThreads>(&to.tokens[depth][slab], from, barrier);
    }
  }
};

// Tokens by number: each thread copies the same parts of the same tokens of every stage. `token` in shared memory.
template <class Tile, class F> struct GatheredTokens {
  static constexpr int kParts = Tile::kTokens * 8 / Tile::kThreads, kScales = (2 * Tile::kTokens + Tile::kThreads - 1) / Tile::kThreads;
  template <class> static constexpr int kBytes = 0;
  const uint8_t* images;
  uint32_t from[kParts], scale[kScales];
  int active;  // tokens, a multiple of 64

  __device__ __forceinline__ GatheredTokens(const TokenImage* images_, int along, const int* token, int count)
      : images(reinterpret_cast<const uint8_t*>(images_)), active(min((count + 63) / 64 * 64, Tile::kTokens)) {
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int at = threadIdx.x / 8 + j * (Tile::kThreads / 8), source = token[at];
      from[j] = static_cast<uint32_t>(source / kSlab * along) * (kTokenBytes / 16) + source % kSlab * 8 + threadIdx.x % 8;  // in parts of 16 bytes
    }
#pragma unroll
    for (int j = 0; j < kScales; ++j) {
      const int u = (threadIdx.x + j * Tile::kThreads) % (2 * Tile::kTokens), source = token[u / 2];
      scale[j] = static_cast<uint32_t>(source / kSlab * along) * (kTokenBytes / 4) + kSlab * 32 + u % 2 * kSlab + four_order(source % kSlab);
    }
  }
  __device__ __forceinline__ void copy(const Tile&, typename Tile::Stage& to, int i, uint64_t*) const {
#pragma unroll
    for (int depth = 0; depth < Tile::kDepth; ++depth)
      copy_one(to.tokens[depth], images + static_cast<size_t>(i * Tile::kDepth + depth) * kTokenBytes);
  }

 private:
  __device__ __forceinline__ void copy_one(TokenImage* to, const uint8_t* stage) const {
#pragma unroll
    for (int j = 0; j < kParts; ++j) {
      const int at = threadIdx.x / 8 + j * (Tile::kThreads / 8);
      if (at >= active) break;
      const int turned = from[j] >> 3 & 7;  // a token's parts are turned by its place in its image
      const int part = (threadIdx.x % 8) ^ turned ^ (at % 8);
      copy_async<16>(to[at / kSlab].x + at % kSlab * 128 + part * 16, stage + static_cast<size_t>(from[j]) * 16);
    }
#pragma unroll
    for (int j = 0; j < kScales; ++j) {
      const int u = threadIdx.x + j * Tile::kThreads, at = u / 2;
      if (u >= 2 * active) break;
      TokenImage& slab = to[at / kSlab];
      const uint8_t* d = stage + static_cast<size_t>(scale[j]) * 4;
      copy_async<4>(&slab.d[u % 2][four_order(at % kSlab)], d);
      if constexpr (F::kMin > 0) copy_async<4>(&slab.sum[u % 2][four_order(at % kSlab)], d + 2 * 4 * kSlab);
    }
  }
};

// ---- weights decoded on the way ------------------------------------------------------------------------------------

// 64 rows of packed planes [n, 32 * blocks], find(r) that of the tile's row r, fetched a stage ahead. Threads share the stage's blocks:
// two a block where they are twice as many, else each takes `kEach` blocks.
template <class Tile, QuantType T, class P, class Find> struct DecodedRows {
  static constexpr int kUnits = kSlab * 2 * Tile::kDepth, kEach = kUnits > Tile::kThreads ? kUnits / Tile::kThreads : 1;
  static constexpr bool kShared = Tile::kThreads == 2 * kUnits;
  static_assert(Tile::kRowGroups == 1 && (kShared || kUnits == kEach * Tile::kThreads));
  template <class> static constexpr int kBytes = 0;
  const uint32_t* table;
  int n, blocks, first_block;
  Find find;
  typename P::Raw raw[kEach];

  __device__ __forceinline__ DecodedRows(const uint32_t* table_, int n_, int blocks_, Find find_)
      : table(table_), n(n_), blocks(blocks_), first_block(0), find(find_) {}

  __device__ __forceinline__ void copy(const Tile&, typename Tile::Stage&, int, uint64_t*) const {}
  __device__ __forceinline__ void first(const Tile& tile) { fetch(tile, 0), put(tile, tile.stage(0)); }
  // Unit u of the stage: a row's neighbouring blocks.
  static __device__ __forceinline__ int unit(int e) { return kShared ? threadIdx.x % kUnits : threadIdx.x + e * Tile::kThreads; }

  __device__ __forceinline__ void fetch(const Tile&, int i) {
    first_block = 2 * Tile::kDepth * i;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int u = unit(e), b = first_block + u % (2 * Tile::kDepth);
      const PackedRow from = find(u / (2 * Tile::kDepth));
      if (b < blocks) raw[e] = P::load(from.planes, n, blocks, from.row, b);
    }
  }
  template <int Half> __device__ __forceinline__ void put_half(const typename P::Raw& from, RowImage<WideFormatOf<T>>& to, int row, int b) const {
    uint32_t code[8] = {};
    P::template decode<1>(from, table, code);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (Half != 2 && Half != half) continue;
      const int c = 4 * half;
      *reinterpret_cast<uint4*>(to.codes + code_offset(row, b) + 16 * half) =
          make_uint4(biased<T, P>(code[c]), biased<T, P>(code[c + 1]), biased<T, P>(code[c + 2]), biased<T, P>(code[c + 3]));
    }
    put_scales<T, Half>(to, row, b, P::scales(from));
  }
  __device__ __forceinline__ void put(const Tile&, typename Tile::Stage& to) const {
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int u = unit(e), row = u / (2 * Tile::kDepth), b = u % (2 * Tile::kDepth);
      if (first_block + b >= blocks) continue;
      auto& image = to.rows[b / 2][0];
      if constexpr (!kShared) {
        put_half<2>(raw[e], image, row, b % 2);
      } else if (threadIdx.x < kUnits) {
        put_half<0>(raw[e], image, row, b % 2);
      } else {
        put_half<1>(raw[e], image, row, b % 2);
      }
    }
  }
};

}  // namespace strata
