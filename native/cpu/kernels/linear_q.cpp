// linear_q: out[r, n] = sum over k of weight[n, k] x[r, k] for quantised weights and int8 activations.
// ptr: num_rows, codes int8 [rows, k], scales float [rows, k / 32], sums int16 [rows, k / 16], weight, out [rows, n];
// dim: type_id, k, n. Order of sums: docs/contract.md. Few rows go weight row by weight row, many by tiles.
#include "cpu/kernels/linear_tile.h"

namespace strata::STRATA_LEVEL {

static constexpr int kFewRows = 3;  // above this, a tile's transposition pays for itself

// One weight row times R activation rows.
template <QuantType T, int R>
STRATA_HD void row_product(const LinearQ& p, int64_t row, int64_t feature) {
  float total[R] = {};
  for (int s = 0; s < p.parts(); ++s) {
    float y[R] = {};
    for (int64_t b = p.part_begin(s); b < p.part_begin(s + 1); ++b) {
      Block32 w;
      decode_block<T>(p, feature, b, w);
      for (int r = 0; r < R; ++r) {
        const int64_t at = (row + r) * p.blocks + b;
        y[r] = dot32<T>(w, p.codes + at * kBlock, p.sums + at * 2, p.scales[at], y[r]);
      }
    }
    for (int r = 0; r < R; ++r) total[r] += y[r];
  }
  for (int r = 0; r < R; ++r) p.out[(row + r) * p.n + feature] = total[r];
}

template <QuantType T>
static void product(const LinearQ& p, int thread, int threads) {
  const Range features = part(p.n, kTileFeatures, thread, threads);
  if (p.live > kFewRows) {
    for (int64_t row = 0; row < p.live; row += kTileRows)
      for (int64_t f = features.begin; f < features.end; f += kTileFeatures)
        tile_product<T>(p, row, p.live - row < kTileRows ? p.live - row : kTileRows, f,
                        features.end - f < kTileFeatures ? features.end - f : kTileFeatures);
    return;
  }
  for (int64_t f = features.begin; f < features.end; ++f) {
    if (p.live == 1) row_product<T, 1>(p, 0, f);
    if (p.live == 2) row_product<T, 2>(p, 0, f);
    if (p.live == 3) row_product<T, 3>(p, 0, f);
  }
}

void linear_q(const Op& op, int thread, int threads) {
  const LinearQ p(op);
  with_quantised_format(static_cast<QuantType>(op.dim[0]), [&]<QuantType T>() { product<T>(p, thread, threads); });
}

}  // namespace strata::STRATA_LEVEL
