// wide_linear: y[token][row] for expanded quantised weights and widened rows (wide.cuh), a thread block a tile.
// Macros: STRATA_SUB, STRATA_HALVES, STRATA_TERMS, STRATA_MIN (WideFormat), STRATA_ROW_GROUPS, STRATA_TOKEN_GROUPS, STRATA_PARTS,
// STRATA_DEPTH, STRATA_STAGES, STRATA_HELD (Wide). Grid: tiles of rows x tiles of tokens.
#include "op.cuh"
#include "wide.cuh"

using namespace strata;

using Weights = WideFormat<STRATA_SUB, STRATA_HALVES, STRATA_TERMS, STRATA_MIN>;
using Tile = Wide<Weights, STRATA_ROW_GROUPS, STRATA_TOKEN_GROUPS, STRATA_PARTS, STRATA_DEPTH, STRATA_STAGES, STRATA_HELD>;

// Rows [first, first + 64 * slabs) of the matrix's n.
extern "C" __global__ void __launch_bounds__(Tile::kThreads, Tile::kThreads == 128 ? 2 : 1)
    wide_linear(const int* live, const Tile::Image* rows, const TokenImage* tokens, float* y, int n, int first, int slabs, int token_slabs, int k) {
  STRATA_DYNAMIC_SHARED(shared);
  constexpr int kBand = 16;  // row tiles that follow one another share tokens' tiles in the cache
  const int across = slabs / Tile::kRowGroups, down = token_slabs / Tile::kSlabs, index = blockIdx.x, along = image_count(k / kBlock);
  const int band = index / (kBand * down), width = min(kBand, across - band * kBand), inside = index - band * kBand * down;
  const int row0 = (band * kBand + inside % width) * Tile::kRows, token0 = inside / width * Tile::kTokens;
  dependency_wait();
  dependency_launch();
  const int count = *live;
  if (token0 >= count) return;
  Tile tile(shared);
  ImageRows<Weights> from{rows + static_cast<size_t>(row0 / kSlab) * along, along};
  ImageTokens<Weights> to{tokens + static_cast<size_t>(token0 / kSlab) * along, along};
  tile.template run<STRATA_PARTS>(from, to, k / kBlock);
  tile.results(STRATA_PARTS, [&](int row, int token, const float4& v) { store_results(y, n, count, first + row0 + row, token0 + token, v); });
}
extern "C" { extern __device__ const int wide_linear_shared = Tile::kSharedBytes; }
