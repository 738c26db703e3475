// linear_q: out[r, n] = sum over k of weight[n, k] x[r, k] for quantised weights and int8 activations.
// ptr: num_rows, codes int8 [rows, k], scales float [rows, k / 32], sums int16 [rows, k / 16], weight, out [rows, n];
// dim: type_id, k, n. Order of sums: docs/contract.md. One row goes weight row by weight row, more go by tiles.
#include "cpu/kernels/linear_tile.h"

namespace strata::STRATA_LEVEL {

template <QuantType T>
static void product(const LinearQ& p, int thread, int threads) {
  const Range features = part(p.n, kTileFeatures, thread, threads);
  if (p.live == 1) {
    for (int64_t f = features.begin; f < features.end; ++f) p.out[f] = row_product<T>(p, 0, f);
    return;
  }
  for (int64_t row = 0; row < p.live; row += kTileRows)
    for (int64_t f = features.begin; f < features.end; f += kTileFeatures)
      tile_product<T>(p, row, p.live - row < kTileRows ? p.live - row : kTileRows, f,
                      features.end - f < kTileFeatures ? features.end - f : kTileFeatures);
}

void linear_q(const Op& op, int thread, int threads) {
  const LinearQ p(op);
  const auto run = [&]<QuantType T>() { product<T>(p, thread, threads); };
  if (!with_quantised_format(static_cast<QuantType>(op.dim[0]), run)) op.fault(kFaultRange);
}

}  // namespace strata::STRATA_LEVEL
