// What wide.cuh asks of a format, its images in memory, and where stages come from.
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

// Scales of block b of a row.
template <QuantType T> __device__ __forceinline__ void put_scales(RowImage<WideFormatOf<T>>& to, int row, int b, const Scales& w) {
  using F = WideFormatOf<T>;
  using I = RowImage<F>;
  const int at = pair_order(row);
  if constexpr (F::kSub == 2) {
    to.line[2 * b][at] = float_bits(w.w0), to.line[2 * b + 1][at] = float_bits(w.w1);
  } else {
    to.line[b][at] = float_bits(w.w0);
  }
  if constexpr (F::kHalves) to.line[I::kS + b][at] = two_halves(w.s0, w.s1);
  if constexpr (F::kMin > 0) to.line[I::kM + b][at] = float_bits(w.m);
  if constexpr (F::kMin == 2) to.line[I::kMins + b][at] = two_halves(w.m0, w.m1);
}

// ---- where stages come from -----------------------------------------------------------------------------------------

// By 128 threads, of which this is `producer`.
template <int Bytes> __device__ __forceinline__ void copy_image(void* to, const void* from, int producer) {
#pragma unroll
  for (int at = 0; at < Bytes; at += 16 * 128)
    if (at + 16 * 128 <= Bytes || at + 16 * producer < Bytes)
      copy_async<16>(static_cast<uint8_t*>(to) + at + 16 * producer, static_cast<const uint8_t*>(from) + at + 16 * producer);
}

// Images of two slabs of tokens, `along` each.
template <class F> struct ImageTokens {
  const TokenImage* images;
  int along, producer;
  __device__ __forceinline__ void copy(TokenImage* to, int i) const {
#pragma unroll
    for (int slab = 0; slab < 2; ++slab)
      copy_image<(F::kMin > 0 ? kTokenBytes : kTokenBytesWithoutSums)>(to + slab, images + static_cast<size_t>(slab) * along + i, producer);
  }
};

// The same of weight rows, two slabs a unit.
template <class F> struct ImageRows {
  const RowImage<F>* images;
  int along, producer;
  __device__ __forceinline__ void fetch(int, int) const {}
  __device__ __forceinline__ void put(RowImage<F>*) const {}
  __device__ __forceinline__ void copy(RowImage<F>* to, int unit, int i) const {
#pragma unroll
    for (int slab = 0; slab < 2; ++slab)
      copy_image<sizeof(RowImage<F>)>(to + slab, images + static_cast<size_t>(2 * unit + slab) * along + i, producer);
  }
};

// Up to 128 tokens by number, gathered by 256 threads: each copies the same parts of the same tokens of every stage, of the first `quarters`
// times 32. token(i): which one the tile's token i is.
template <class F> struct GatheredTokens {
  const uint8_t* images;
  uint32_t from[4], scale;  // in 16 bytes, in 4
  int producer, quarters;

  template <class Token>
  __device__ __forceinline__ GatheredTokens(const TokenImage* images_, int along, int producer_, int quarters_, Token token)
      : images(reinterpret_cast<const uint8_t*>(images_)), producer(producer_), quarters(quarters_) {
    const uint32_t pitch = static_cast<uint32_t>(along) * (kTokenBytes / 16);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = producer / 8 + 32 * j, source = token(at);
      const int part = producer % 8 ^ at % 8 ^ source % 8;  // a token's parts are turned by its place in its image
      from[j] = static_cast<uint32_t>(source / kSlab) * pitch + source % kSlab * 8 + part;
    }
    const int source = token(producer / 2);
    scale = static_cast<uint32_t>(source / kSlab) * (4 * pitch) + kSlab * 32 + producer % 2 * kSlab + four_order(source % kSlab);
  }
  __device__ __forceinline__ void copy(TokenImage* to, int i) const {
    const uint8_t* stage = images + static_cast<size_t>(i) * kTokenBytes;
    uint8_t* x = to->x + producer * 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j >= quarters) break;
      copy_async<16>(x + j / 2 * kTokenBytes + j % 2 * 4096, stage + static_cast<size_t>(from[j]) * 16);
    }
    const int token = producer / 2;
    if (token >= 32 * quarters) return;
    float* d = &to[token / kSlab].d[producer % 2][four_order(token % kSlab)];
    stage += static_cast<size_t>(scale) * 4;
    copy_async<4>(d, stage);
    if constexpr (F::kMin > 0) copy_async<4>(d + 2 * kSlab, stage + 8 * kSlab);
  }
};

// 128 rows of packed planes [n, 32 * blocks], decoded by 256 threads, a 32-block each; find(unit, r) is row r of tile `unit`.
template <QuantType T, class P, class Find> struct DecodedRows {
  const uint32_t* table;
  int n, blocks, producer, block;  // `block` of the row that is on its way
  Find find;
  typename P::Raw raw;

  __device__ __forceinline__ DecodedRows(const uint32_t* table_, int n_, int blocks_, int producer_, Find find_)
      : table(table_), n(n_), blocks(blocks_), producer(producer_), block(0), find(find_) {}

  __device__ __forceinline__ void fetch(int unit, int i) {
    block = 2 * i + producer % 2;
    if (block >= blocks) return;
    const PackedRow from = find(unit, producer / 2);
    raw = P::load(from.planes, n, blocks, from.row, block);
  }
  __device__ __forceinline__ void copy(RowImage<WideFormatOf<T>>*, int, int) const {}
  __device__ __forceinline__ void put(RowImage<WideFormatOf<T>>* to) const {
    if (block >= blocks) return;
    auto& image = to[producer / (2 * kSlab)];
    const int row = producer / 2 % kSlab, b = producer % 2;
    uint32_t code[8] = {};
    P::template decode<1>(raw, table, code);
    uint4* codes = reinterpret_cast<uint4*>(image.codes + code_offset(row, b));
    codes[0] = make_uint4(biased<T, P>(code[0]), biased<T, P>(code[1]), biased<T, P>(code[2]), biased<T, P>(code[3]));
    codes[1] = make_uint4(biased<T, P>(code[4]), biased<T, P>(code[5]), biased<T, P>(code[6]), biased<T, P>(code[7]));
    put_scales<T>(image, row, b, P::scales(raw));
  }
};

}  // namespace strata
