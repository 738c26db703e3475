// What wide.cuh asks of a format, the orders of its planes, and where tiles come from.
#pragma once

#include "packed.cuh"

namespace strata {

// Where a weight row's scales lie in 16 rows: rows g and g + 8 side by side.
__device__ __forceinline__ int pair_order(int row) { return (row & ~15) | (row & 7) << 1 | (row >> 3 & 1); }
// Where a token's scales lie in 16 tokens: tokens 2 t, 2 t + 1, 2 t + 8, 2 t + 9 side by side.
__device__ __forceinline__ int four_order(int token) { return (token & ~15) | (token & 6) << 1 | (token >> 3 & 1) << 1 | (token & 1); }

// Sub, Halves (two sub-scales), Terms of a code times its sub-scale, Min (minimums a block).
template <int Sub, bool Halves, int Terms, int Min> struct WideFormat {
  static constexpr int kSub = Sub, kTerms = Terms, kMin = Min;
  static constexpr bool kHalves = Halves;
};
template <QuantType T> constexpr bool kWideHalves = kSteps<T> == Steps::halves;
template <QuantType T> constexpr int kWideMin = !kHasMin<T> ? 0 : kWideHalves<T> ? 2 : 1;
template <QuantType T>
using WideFormatOf = WideFormat<kSteps<T> == Steps::scale16 ? 2 : 1, kWideHalves<T>, T == QuantType::Q6_K ? 2 : 1, kWideMin<T>>;

// A stored code plus 128.
template <QuantType T, class P> __device__ __forceinline__ uint32_t biased(uint32_t codes) {
  if constexpr (P::kOffset == 0) return codes ^ 0x80808080u;
  return (codes | 0x80808080u) - 0x01010101u * P::kOffset;
}
__device__ __forceinline__ uint32_t two_halves(int low, int high) {
  return float_half(static_cast<float>(low)) | static_cast<uint32_t>(float_half(static_cast<float>(high))) << 16;
}

// ---- tiles of expanded planes ------------------------------------------------------------------------------------

struct WideRows {  // rows: padded; a tile's planes from its first row on
  const uint8_t* codes;
  const float* w;
  const uint32_t* s;
  const float* m;
  const uint32_t* mins;
  int rows, k;  // k of the planes, a multiple of 64

  template <class Tile> __device__ __forceinline__ void first(const Tile&, int) const {}
  template <class Tile> __device__ __forceinline__ void fetch(const Tile&, int) const {}
  template <class Tile> __device__ __forceinline__ void put(const Tile&, typename Tile::Stage&, int) const {}

  // Lines of Count words, `leading` words apart, to lines side by side.
  template <int Lines, int Count, int Threads> static __device__ __forceinline__ void copy_lines(void* to, const void* from, int leading) {
#pragma unroll
    for (int i = threadIdx.x; i < Lines * Count / 4; i += Threads) {
      const int line = i / (Count / 4), part = i % (Count / 4);
      copy_async<16>(static_cast<uint32_t*>(to) + line * Count + part * 4, static_cast<const uint32_t*>(from) + static_cast<size_t>(line) * leading + part * 4);
    }
  }
  template <class Tile> __device__ __forceinline__ void copy(const Tile&, typename Tile::Stage& to, int i) const {
#pragma unroll
    for (int u = threadIdx.x; u < Tile::kRows * 4; u += Tile::kThreads) {
      const int row = u / 4, part = u % 4;
      copy_async<16>(to.codes + row * Tile::kPitch + part * 16, codes + static_cast<size_t>(row) * k + i * 64 + part * 16);
    }
    const size_t at = static_cast<size_t>(2 * i) * rows;
    copy_lines<Tile::kPasses, Tile::kRows, Tile::kThreads>(to.w, w + at * (Tile::kPasses / 2), rows);
    if constexpr (sizeof(to.s) > 16) copy_lines<2, Tile::kRows, Tile::kThreads>(to.s, s + at, rows);
    if constexpr (sizeof(to.m) > 16) copy_lines<2, Tile::kRows, Tile::kThreads>(to.m, m + at, rows);
    if constexpr (sizeof(to.mins) > 16) copy_lines<2, Tile::kRows, Tile::kThreads>(to.mins, mins + at, rows);
  }
};

struct WideTokens {  // tokens that lie one after another, from a multiple of 16 on
  const uint16_t* x;
  const float* d;
  const uint32_t* sum;
  int tokens, k;

  template <class Tile> __device__ __forceinline__ void copy(const Tile&, typename Tile::Stage& to, int i) const {
#pragma unroll
    for (int u = threadIdx.x; u < Tile::kTokens * 8; u += Tile::kThreads) {
      const int token = u / 8, part = u % 8;
      copy_async<16>(to.x + token * 128 + (part ^ token % 8) * 16, x + static_cast<size_t>(token) * k + i * 64 + part * 8);
    }
    const size_t at = static_cast<size_t>(2 * i) * tokens;
    WideRows::copy_lines<2, Tile::kTokens, Tile::kThreads>(to.d, d + at, tokens);
    if constexpr (sizeof(to.sum) > 16) WideRows::copy_lines<2, Tile::kTokens, Tile::kThreads>(to.sum, sum + at, tokens);
  }
};

struct GatheredTokens {  // tokens by number, in shared memory
  const int* token;
  const uint16_t* x;
  const float* d;
  const uint32_t* sum;
  int tokens, k, count;  // count: of this tile

  template <class Tile> __device__ __forceinline__ void copy(const Tile&, typename Tile::Stage& to, int i) const {
    const int last = min((count + 63) / 64 * 64, Tile::kTokens);
#pragma unroll 4
    for (int u = threadIdx.x; u < last * 8; u += Tile::kThreads) {
      const int at = u / 8, part = u % 8;
      copy_async<16>(to.x + at * 128 + (part ^ at % 8) * 16, x + static_cast<size_t>(token[at]) * k + i * 64 + part * 8);
    }
    for (int u = threadIdx.x; u < 2 * last; u += Tile::kThreads) {
      const int b = u / last, at = u % last, to_at = four_order(at);
      const size_t from = static_cast<size_t>(2 * i + b) * tokens + four_order(token[at]);
      copy_async<4>(&to.d[b][to_at], d + from);
      if constexpr (sizeof(to.sum) > 16) copy_async<4>(&to.sum[b][to_at], sum + from);
    }
  }
};

// ---- weights decoded on the way ------------------------------------------------------------------------------------

// Where a row of a tile lies.
struct PackedRow {
  const uint8_t* planes;
  int row;
};

// Rows of packed planes [n, 32 * blocks], find(r) that of the tile's row r, fetched a stage ahead: two threads a block where there are
// 256, else one.
template <QuantType T, class P, class Find> struct DecodedRows {
  const uint32_t* table;
  int n, blocks;
  Find find;
  typename P::Raw raw;
  bool there;

  __device__ __forceinline__ DecodedRows(const uint32_t* table_, int n_, int blocks_, Find find_)
      : table(table_), n(n_), blocks(blocks_), find(find_), there(false) {}

  template <class Tile> __device__ __forceinline__ void copy(const Tile&, typename Tile::Stage&, int) const {}
  template <class Tile> __device__ __forceinline__ void first(const Tile& tile, int) { fetch(tile, 0), put(tile, tile.stage(0), 0); }
  template <class Tile> __device__ __forceinline__ void fetch(const Tile&, int i) {
    static_assert(Tile::kRows == 64 && (Tile::kThreads == 256 || Tile::kThreads == 128));
    const int u = threadIdx.x % 128, b = 2 * i + u % 2;
    const PackedRow from = find(u / 2);
    there = b < blocks;
    if (there) raw = P::load(from.planes, n, blocks, from.row, b);
  }
  // Codes of half `Half` of the block, and what belongs to it.
  template <int Half, class Stage> __device__ __forceinline__ void put_half(Stage& to, int row, int b) const {
    uint32_t code[8] = {};
    P::template decode<1>(raw, table, code);
    constexpr int c = 4 * Half;
    *reinterpret_cast<uint4*>(to.codes + row * 96 + b * 32 + 16 * Half) =
        make_uint4(biased<T, P>(code[c]), biased<T, P>(code[c + 1]), biased<T, P>(code[c + 2]), biased<T, P>(code[c + 3]));
    const Scales w = P::scales(raw);
    const int at = pair_order(row);
    using F = WideFormatOf<T>;
    if constexpr (F::kSub == 2) {
      to.w[2 * b + Half][at] = Half ? w.w1 : w.w0;
    } else if constexpr (Half == 0) {
      to.w[b][at] = w.w0;
    }
    if constexpr (F::kHalves && Half == 1) to.s[b][at] = two_halves(w.s0, w.s1);
    if constexpr (F::kMin > 0 && Half == 1) to.m[b][at] = w.m;
    if constexpr (F::kMin == 2 && Half == 0) to.mins[b][at] = two_halves(w.m0, w.m1);
  }
  template <class Tile> __device__ __forceinline__ void put(const Tile&, typename Tile::Stage& to, int) const {
    const int u = threadIdx.x % 128, row = u / 2, b = u % 2;
    if (!there) return;
    if (Tile::kThreads == 128 || threadIdx.x < 128) put_half<0>(to, row, b);
    if (Tile::kThreads == 128 || threadIdx.x >= 128) put_half<1>(to, row, b);
  }
};

}  // namespace strata
