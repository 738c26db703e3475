// Quantised products, the portable text: a weight row times one activation row, and tiles, 32 features of the weight
// decoded once a block for up to 128 rows.
#pragma once
#include "cpu/kernels/kernel.h"
#include "strata/quants.h"

namespace strata::STRATA_LEVEL {

constexpr int kTileFeatures = 32, kTileRows = 128;

// Operands of linear_rows.
struct Product {
  int64_t blocks, stride;
  const int8_t* codes;
  const float* scales;
  const int16_t* sums;
  const int32_t* index;
  const uint8_t* weight;
  float* out;

  int64_t input(int64_t row) const { return index ? index[row] : row; }
  int parts() const { return segments(static_cast<int>(blocks)); }
  int64_t part_begin(int s) const { return segment_begin(s, static_cast<int>(blocks)); }
};

// Values [32 b, 32 b + 32) of a weight row.
template <QuantType T>
STRATA_HD void decode_block(const Product& p, int64_t feature, int64_t b, Block32& out) {
  constexpr int kParts = Format<T>::values / kBlock;
  const int64_t block = feature * (p.blocks / kParts) + b / kParts;
  Format<T>::block32(p.weight + block * Format<T>::bytes, static_cast<int>(b % kParts), out);
}

// One activation row times one weight row.
template <QuantType T>
STRATA_HD float row_product(const Product& p, int64_t row, int64_t feature) {
  const int64_t first = p.input(row) * p.blocks;
  float total = 0.0f;
  for (int s = 0; s < p.parts(); ++s) {
    float y = 0.0f;
    for (int64_t b = p.part_begin(s); b < p.part_begin(s + 1); ++b) {
      Block32 w;
      decode_block<T>(p, feature, b, w);
      y = dot32<T>(w, p.codes + (first + b) * kBlock, p.sums + (first + b) * 2, p.scales[first + b], y);
    }
    total += y;
  }
  return total;
}

// One 32-block of every feature of a tile, features innermost. Codes are floats: products of codes and their sums stay
// below 2^24, so float sums are the exact integers, in any order, and every instruction set has float lanes.
struct WeightTile {
  alignas(64) float code[kBlock][kTileFeatures];
  alignas(64) int32_t scale[2][kTileFeatures], min[2][kTileFeatures];
  alignas(64) float d[2][kTileFeatures], dmin[kTileFeatures];
};

// Transposes 32 x 32 bytes: a perfect shuffle turns the index's top bit into its lowest; five exchange row and column.
STRATA_HD void transpose32(int8_t* __restrict a, int8_t* __restrict b) {
  constexpr int kHalf = kBlock * kTileFeatures / 2;
  for (int stage = 0; stage < 5; ++stage) {
    const int8_t* __restrict in = stage % 2 == 0 ? a : b;
    int8_t* __restrict out = stage % 2 == 0 ? b : a;
    for (int i = 0; i < kHalf; ++i) out[2 * i] = in[i], out[2 * i + 1] = in[kHalf + i];
  }
}

template <QuantType T>
STRATA_HD void decode_tile(const Product& p, int64_t feature, int64_t features, int64_t b, WeightTile& tile) {
  constexpr bool kHalves = Format<T>::halves;
  alignas(64) int8_t codes[kTileFeatures][kBlock], transposed[kBlock][kTileFeatures];
  if (features < kTileFeatures) memset(codes, 0, sizeof(codes));
  for (int64_t f = 0; f < features; ++f) {
    Block32 w;
    decode_block<T>(p, feature + f, b, w);
    memcpy(codes[f], w.code, kBlock);
    // As dot32: what a format stores once per 32 weights belongs to the float scale and minimum.
    for (int h = 0; h < 2; ++h) {
      tile.scale[h][f] = w.scale[h], tile.min[h][f] = w.min[h];
      tile.d[h][f] = kHalves ? w.d[h] : w.d[h] * static_cast<float>(w.scale[h]);
    }
    tile.dmin[f] = kHalves ? w.dmin : w.dmin * static_cast<float>(w.min[0]);
  }
  transpose32(codes[0], transposed[0]);
  for (int k = 0; k < kBlock; ++k)
    for (int f = 0; f < kTileFeatures; ++f) tile.code[k][f] = transposed[k][f];
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
STRATA_HD void tile_step(const WeightTile& w, const float* __restrict a, const int16_t* sums, float d_a,
                         float* __restrict y) {
  alignas(64) float sum0[kTileFeatures] = {}, sum1[kTileFeatures] = {};
  for (int k = 0; k < 16; ++k)
    for (int f = 0; f < kTileFeatures; ++f) sum0[f] = add_exact(w.code[k][f], a[k], sum0[f]);
  for (int k = 16; k < 32; ++k)
    for (int f = 0; f < kTileFeatures; ++f) sum1[f] = add_exact(w.code[k][f], a[k], sum1[f]);
  for (int f = 0; f < kTileFeatures; ++f) {
    const int32_t low = static_cast<int32_t>(sum0[f]), high = static_cast<int32_t>(sum1[f]);
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

template <QuantType T>
STRATA_HD void tile_product(const Product& p, int64_t row, int64_t rows, int64_t feature, int64_t features) {
  alignas(64) float y[kTileRows][kTileFeatures], total[kTileRows][kTileFeatures], a[kTileRows][kBlock];
  WeightTile tile{};
  memset(total, 0, static_cast<size_t>(rows) * sizeof(total[0]));
  for (int s = 0; s < p.parts(); ++s) {
    memset(y, 0, static_cast<size_t>(rows) * sizeof(y[0]));
    for (int64_t b = p.part_begin(s); b < p.part_begin(s + 1); ++b) {
      decode_tile<T>(p, feature, features, b, tile);
      for (int64_t r = 0; r < rows; ++r)
        for (int k = 0; k < kBlock; ++k) a[r][k] = p.codes[(p.input(row + r) * p.blocks + b) * kBlock + k];
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = p.input(row + r) * p.blocks + b;
        tile_step<T>(tile, a[r], p.sums + at * 2, p.scales[at], y[r]);
      }
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int f = 0; f < kTileFeatures; ++f) total[r][f] += y[r][f];
  }
  for (int64_t r = 0; r < rows; ++r)
    memcpy(p.out + (row + r) * p.stride + feature, total[r], static_cast<size_t>(features) * sizeof(float));
}

// All of a product.
template <QuantType T>
static void portable_rows(const Product& p, int64_t rows, int64_t features) {
  if (rows == 1) {
    for (int64_t f = 0; f < features; ++f) p.out[f] = row_product<T>(p, 0, f);
    return;
  }
  for (int64_t row = 0; row < rows; row += kTileRows)
    for (int64_t f = 0; f < features; f += kTileFeatures)
      tile_product<T>(p, row, rows - row < kTileRows ? rows - row : kTileRows, f,
                      features - f < kTileFeatures ? features - f : kTileFeatures);
}

}  // namespace strata::STRATA_LEVEL
