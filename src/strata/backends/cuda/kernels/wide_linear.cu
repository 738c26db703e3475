// wide_linear: y[token][row] for expanded quantised weights and widened rows (wide.cuh), a thread block a tile.
// Macros: STRATA_SUB, STRATA_HALVES, STRATA_TERMS, STRATA_MIN (WideFormat), STRATA_ROW_GROUPS, STRATA_TOKEN_GROUPS, STRATA_PARTS,
// STRATA_STAGES (Wide). Grid: tiles of rows x tiles of tokens.
#include "op.cuh"
#include "wide.cuh"

using namespace strata;

using Tile = Wide<WideFormat<STRATA_SUB, STRATA_HALVES, STRATA_TERMS, STRATA_MIN>, STRATA_ROW_GROUPS, STRATA_TOKEN_GROUPS, STRATA_PARTS, STRATA_STAGES>;

extern "C" __global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads == 128 ? 2 : 1)
    wide_linear(const int* live, const uint8_t* codes, const float* w, const uint32_t* s, const float* m, const uint32_t* mins,
                const uint16_t* x, const float* d, const uint32_t* sum, float* y, int n, int first_row, int rows, int tokens, int k) {
  STRATA_DYNAMIC_SHARED(shared);
  constexpr int kBand = 16;  // row tiles that follow one another share tokens' tiles in the cache
  const int across = rows / Tile::kRows, down = tokens / Tile::kTokens, index = blockIdx.x;
  const int band = index / (kBand * down), width = min(kBand, across - band * kBand), inside = index - band * kBand * down;
  const int row0 = (band * kBand + inside % width) * Tile::kRows, token0 = inside / width * Tile::kTokens;
  dependency_wait();
  dependency_launch();
  const int count = *live, padded = (k / kBlock + 1) / 2 * 64;
  if (token0 >= count) return;
  Tile tile(shared);
  WideRows from{codes + static_cast<size_t>(row0) * padded, w + row0, s + row0, m + row0, mins + row0, rows, padded};
  WideTokens to{x + static_cast<size_t>(token0) * padded, d + token0, sum + token0, tokens, padded};
  tile.template run<STRATA_PARTS>(from, to, k / kBlock);
  tile.results(STRATA_PARTS, [&](int row, int token, const float4& v) {
    const int at_row = first_row + row0 + row;
    float* at = y + static_cast<int64_t>(token0 + token) * n + at_row;
    const bool first = token0 + token < count, second = token0 + token + 1 < count;
    if (at_row < n && first) at[0] = v.x;
    if (at_row < n && second) at[n] = v.y;
    if (at_row + 8 < n && first) at[8] = v.z;
    if (at_row + 8 < n && second) at[n + 8] = v.w;
  });
}
extern "C" { extern __device__ const int wide_linear_shared = Tile::kSharedBytes; }
