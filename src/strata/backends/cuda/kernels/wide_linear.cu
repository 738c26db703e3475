// wide_linear: y[token][row] for expanded quantised weights and widened rows (wide.cuh), a thread block some tiles of the same tokens.
// Macros: STRATA_SUB, STRATA_HALVES, STRATA_TERMS, STRATA_MIN (WideFormat), STRATA_STAGES, STRATA_IMAGES (Wide). Grid: groups of row tiles x tiles of tokens.
#include "op.cuh"
#include "wide.cuh"

using namespace strata;

using Weights = WideFormat<STRATA_SUB, STRATA_HALVES, STRATA_TERMS, STRATA_MIN>;
using Tile = Wide<Weights, STRATA_STAGES, STRATA_IMAGES, false>;

// Rows [first, first + 64 * slabs) of the matrix's n; each thread block has `each` tiles of rows.
extern "C" __global__ void __launch_bounds__(Tile::kThreads, 1)
    wide_linear(const int* live, const Tile::Image* rows, const TokenImage* tokens, float* y, int n, int first, int slabs, int token_slabs, int k,
                int each) {
  STRATA_DYNAMIC_SHARED(shared);
  constexpr int kBand = 8;  // groups of row tiles that follow one another share tokens' tiles in the cache
  const int tiles = slabs / 2, across = (tiles + each - 1) / each, down = token_slabs / 2, index = blockIdx.x, along = image_count(k / kBlock);
  const int band = index / (kBand * down), width = min(kBand, across - band * kBand), inside = index - band * kBand * down;
  const int tile0 = (band * kBand + inside % width) * each, token0 = inside / width * Tile::kTokens, units = min(each, tiles - tile0);
  const Tile tile(shared);
  __syncthreads();
  dependency_wait();
  dependency_launch();
  const int count = *live;
  if (token0 >= count) return;
  if (Tile::produces()) {
    registers_shrink<Tile::kProducerRegisters>();
    const ImageTokens<Weights> from{tokens + static_cast<size_t>(token0 / kSlab) * along, along, Tile::producer()};
    ImageRows<Weights> of{rows + static_cast<size_t>(2 * tile0) * along, along, Tile::producer()};
    tile.fill(of, from, units, k / kBlock);
    return;
  }
  registers_grow<Tile::kConsumerRegisters>();
  tile.template consume<4>(units, k / kBlock, [&](int unit, const float (&total)[4][16]) {
    const int row0 = first + (tile0 + unit) * Tile::kRows;
    Tile::results(total, [&](int row, int token, const float4& v) { store_results(y, n, count, row0 + row, token0 + token, v); });
  });
}
extern "C" { extern __device__ const int wide_linear_shared = Tile::kSharedBytes; }
