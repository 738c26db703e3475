// Quantised products: a weight row times a few activation rows, and the tiled form, 32 features of the weight decoded
// once a block for up to 256 rows. P names the operands (LinearQ does); its row i reads activation row input(i).
#pragma once
#include "cpu/kernels/kernel.h"
#include "strata/quants.h"

namespace strata::STRATA_LEVEL {

constexpr int kTileFeatures = 32, kTileRows = 256;
constexpr int kFewRows = 3;  // above this, a tile's transposition pays for itself

// A linear_q record, named.
struct LinearQ {
  int64_t live, blocks, n;
  const int8_t* codes;
  const float* scales;
  const int16_t* sums;
  const uint8_t* weight;
  float* out;

  explicit LinearQ(const Op& op)
      : live(live_rows(op, 0)), blocks(op.dim[1] / kBlock), n(op.dim[2]), codes(op.at<const int8_t>(1)),
        scales(op.at<const float>(2)), sums(op.at<const int16_t>(3)), weight(op.at<const uint8_t>(4)),
        out(op.at<float>(5)) {}

  int64_t input(int64_t row) const { return row; }
};

template <class P> STRATA_HD int parts(const P& p) { return segments(static_cast<int>(p.blocks)); }
template <class P> STRATA_HD int64_t part_begin(const P& p, int s) {
  return segment_begin(s, static_cast<int>(p.blocks));
}

// Values [32 b, 32 b + 32) of a weight row.
template <QuantType T, class P>
STRATA_HD void decode_block(const P& p, int64_t feature, int64_t b, Block32& out) {
  constexpr int kParts = Format<T>::values / kBlock;
  const int64_t block = feature * (p.blocks / kParts) + b / kParts;
  Format<T>::block32(p.weight + block * Format<T>::bytes, static_cast<int>(b % kParts), out);
}

// One weight row times R activation rows.
template <QuantType T, int R, class P>
STRATA_HD void row_product(const P& p, int64_t row, int64_t feature) {
  float total[R] = {};
  for (int s = 0; s < parts(p); ++s) {
    float y[R] = {};
    for (int64_t b = part_begin(p, s); b < part_begin(p, s + 1); ++b) {
      Block32 w;
      decode_block<T>(p, feature, b, w);
      for (int r = 0; r < R; ++r) {
        const int64_t at = p.input(row + r) * p.blocks + b;
        y[r] = dot32<T>(w, p.codes + at * kBlock, p.sums + at * 2, p.scales[at], y[r]);
      }
    }
    for (int r = 0; r < R; ++r) total[r] += y[r];
  }
  for (int r = 0; r < R; ++r) p.out[(row + r) * p.n + feature] = total[r];
}

// Features [begin, end) times the first p.live rows, of which there are at most kFewRows.
template <QuantType T, class P>
STRATA_HD void few_rows_product(const P& p, int64_t begin, int64_t end) {
  for (int64_t f = begin; f < end; ++f) {
    if (p.live == 1) row_product<T, 1>(p, 0, f);
    if (p.live == 2) row_product<T, 2>(p, 0, f);
    if (p.live == 3) row_product<T, 3>(p, 0, f);
  }
}

// One 32-block of every feature of a tile, features innermost. Codes are floats: products of codes and their sums stay
// below 2^24, so float sums are the exact integers, in any order, and every instruction set has float lanes.
struct WeightTile {
  alignas(64) float code[kBlock][kTileFeatures];
  alignas(64) int32_t scale[2][kTileFeatures], min[2][kTileFeatures];
  alignas(64) float d[2][kTileFeatures], dmin[kTileFeatures];
};

template <QuantType T, class P>
STRATA_HD void decode_tile(const P& p, int64_t feature, int64_t features, int64_t b, WeightTile& tile) {
  alignas(64) int8_t codes[kTileFeatures][kBlock];
  for (int64_t f = 0; f < features; ++f) {
    Block32 w;
    decode_block<T>(p, feature + f, b, w);
    memcpy(codes[f], w.code, kBlock);
    // As dot32: what a format stores once per 32 weights belongs to the float scale and minimum.
    constexpr bool kHalves = Format<T>::halves;
    for (int h = 0; h < 2; ++h) {
      tile.scale[h][f] = w.scale[h], tile.min[h][f] = w.min[h];
      tile.d[h][f] = kHalves ? w.d[h] : w.d[h] * static_cast<float>(w.scale[h]);
    }
    tile.dmin[f] = kHalves ? w.dmin : w.dmin * static_cast<float>(w.min[0]);
  }
  for (int k = 0; k < kBlock; ++k)
    for (int f = 0; f < kTileFeatures; ++f) tile.code[k][f] = codes[f][k];
}

// acc + w a, exact: the form is free, and a processor without fma must not call a function here.
STRATA_HD float add_exact(float w, float a, float acc) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return fma32(w, a, acc);
#else
  return acc + w * a;
#endif
}

// The step dot32 takes, for all features of a tile.
template <QuantType T>
STRATA_HD void tile_step(const WeightTile& w, const int8_t* code, const int16_t* sums, float d_a, float* __restrict y) {
  alignas(64) float a[kBlock], sum[2][kTileFeatures] = {};
  for (int k = 0; k < kBlock; ++k) a[k] = code[k];
  for (int h = 0; h < 2; ++h)
    for (int k = 16 * h; k < 16 * h + 16; ++k)
      for (int f = 0; f < kTileFeatures; ++f) sum[h][f] = add_exact(w.code[k][f], a[k], sum[h][f]);
  for (int f = 0; f < kTileFeatures; ++f) {
    const int32_t low = static_cast<int32_t>(sum[0][f]), high = static_cast<int32_t>(sum[1][f]);
    if constexpr (Format<T>::scale16) {
      y[f] = dot_step(low, w.d[0][f], d_a, y[f]);
      y[f] = dot_step(high, w.d[1][f], d_a, y[f]);
    } else if constexpr (Format<T>::halves) {
      y[f] = dot_step(w.scale[0][f] * low + w.scale[1][f] * high, w.d[0][f], d_a, y[f]);
    } else {
      y[f] = dot_step(low + high, w.d[0][f], d_a, y[f]);
    }
    if constexpr (Format<T>::has_min && Format<T>::halves)
      y[f] = dot_step(w.min[0][f] * sums[0] + w.min[1][f] * sums[1], w.dmin[f], d_a, y[f]);
    else if constexpr (Format<T>::has_min)
      y[f] = min_step(w.dmin[f], sums[0] + sums[1], d_a, y[f]);
  }
}

template <QuantType T, class P>
STRATA_HD void tile_product(const P& p, int64_t row, int64_t rows, int64_t feature, int64_t features) {
  alignas(64) float y[kTileRows][kTileFeatures], total[kTileRows][kTileFeatures];
  WeightTile tile{};
  memset(total, 0, static_cast<size_t>(rows) * sizeof(total[0]));
  for (int s = 0; s < parts(p); ++s) {
    memset(y, 0, static_cast<size_t>(rows) * sizeof(y[0]));
    for (int64_t b = part_begin(p, s); b < part_begin(p, s + 1); ++b) {
      decode_tile<T>(p, feature, features, b, tile);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = p.input(row + r) * p.blocks + b;
        tile_step<T>(tile, p.codes + at * kBlock, p.sums + at * 2, p.scales[at], y[r]);
      }
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int f = 0; f < kTileFeatures; ++f) total[r][f] += y[r][f];
  }
  for (int64_t r = 0; r < rows; ++r)
    memcpy(p.out + (row + r) * p.n + feature, total[r], static_cast<size_t>(features) * sizeof(float));
}

}  // namespace strata::STRATA_LEVEL
