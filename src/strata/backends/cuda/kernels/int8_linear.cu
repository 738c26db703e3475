// int8_linear: y[token][row] of packed weights and q8 rows (gemm.cuh), a thread block a tile.
// Macros: STRATA_TYPE, STRATA_BLOCKS (of a row), STRATA_ROW_WARPS, STRATA_TOKEN_WARPS, STRATA_TILES, STRATA_STAGE (Gemm).
// Grid: tiles of rows x tiles of tokens, of which eight that follow one another share a weight tile in the cache.
#include "gemm.cuh"
#include "op.cuh"

using namespace strata;

using Tile = Gemm<STRATA_TYPE, STRATA_BLOCKS, STRATA_ROW_WARPS, STRATA_TOKEN_WARPS, STRATA_TILES, true, STRATA_STAGE, true>;

extern "C" __global__ void __launch_bounds__(Tile::kThreads)
    int8_linear(const int* live, const uint8_t* w, const int8_t* q, const float* d, const int16_t* sums, float* y, int n, int down) {
  STRATA_DYNAMIC_SHARED(shared);
  constexpr int kBand = 8;
  const int across = (n + Tile::kRows - 1) / Tile::kRows, index = blockIdx.x, band = index / (kBand * across);
  const int width = min(kBand, down - band * kBand), inside = index - band * kBand * across;
  const int row0 = inside / width * Tile::kRows, token0 = (band * kBand + inside % width) * Tile::kTokens;
  dependency_wait();
  dependency_launch();
  const int count = *live;
  if (token0 >= count) return;
  Tile::run(
      shared, n, [=](int r) { return PackedRow{w, min(row0 + r, n - 1)}; }, {q, d, sums}, [=](int i) { return min(token0 + i, count - 1); },
      [&](int row, int token, const float4& v) { store_results(y, n, count, row0 + row, token0 + token, v); });
}
extern "C" { extern __device__ const int int8_linear_shared = Tile::kSharedBytes; }
