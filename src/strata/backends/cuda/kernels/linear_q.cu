// linear_q: y[m][row] for quantised weights [n, k] of one type and q8 rows, up to three matrices of the same rows in one launch.
// Macros: STRATA_TYPE, STRATA_ROWS (M), STRATA_SEGMENTS (of k), STRATA_AHEAD (blocks loaded before the first is used), STRATA_LENGTH
// (product.cuh), STRATA_HALF (blocks of half a segment where two lanes share one, relay.cuh; else 0), STRATA_THREADS (of thread blocks of
// which two stay on a multiprocessor; left out: 256), STRATA_EACH (rows that each live one stands for; left out: 1). grid.x: thread blocks of matrix 0, of matrix 1, of matrix 2; grid.y: groups of M rows.
#include "matrices.cuh"
#include "product.cuh"
#include "relay.cuh"

using namespace strata;

#ifndef STRATA_EACH
#define STRATA_EACH 1
#endif

#ifdef STRATA_THREADS
#define STRATA_BOUNDS __launch_bounds__(STRATA_THREADS, 2)
#else
#define STRATA_BOUNDS __launch_bounds__(256)
#endif

extern "C" __global__ void STRATA_BOUNDS linear_q(const int* live, const int8_t* q, const float* d, const int16_t* sums,
                                                           const uint8_t* w0, float* y0, int n0, const uint8_t* w1, float* y1, int n1,
                                                           const uint8_t* w2, float* y2, int n2, int k) {
  constexpr QuantType T = STRATA_TYPE;
  constexpr int M = STRATA_ROWS, segs = STRATA_SEGMENTS, per_warp = STRATA_HALF > 0 ? 1 : 32 / segs;
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  float* scratch = reinterpret_cast<float*>(table + Packed<T>::kTableWords);
  const StagedRows a = staged_rows<M, segs>(reinterpret_cast<uint8_t*>(scratch + blockDim.x * M), k);
  const int each = static_cast<int>(blockDim.x) / 32 * per_warp;
  const auto [w, y, n, block] = matrix_of_block(each, w0, y0, n0, w1, y1, n1, w2, y2, n2);
  const int first = block * each + warp_id() * per_warp;
  const int row = min(first + (STRATA_HALF > 0 ? 0 : lane_id() / segs), n - 1);
#if STRATA_HALF > 0
  const RelayChain<T, M, STRATA_HALF> chain(w, n, k / kBlock, row);
#else
  SegmentChain<T, M, segs, STRATA_AHEAD, STRATA_LENGTH> chain(w, n, k / kBlock, row);
  chain.load_first();
#endif
  dependency_launch();  // the next node's weights may start to flow; its reads of our rows wait for us to end
  Packed<T>::template fill<1>(table);
  dependency_wait();
  const int row0 = blockIdx.y * M, rows = min(*live * STRATA_EACH - row0, M);
  if (rows <= 0) return;
  stage_rows<M, segs>(a, q + static_cast<size_t>(row0) * k, d + static_cast<size_t>(row0) * a.blocks,
                      sums + static_cast<size_t>(row0) * 2 * a.blocks, k, rows);
  __syncthreads();
  float part[M];
  chain.run(table, a, part);
  add_segments<M, segs, 32 / segs / per_warp>(part, scratch + warp_id() * M * 32, [&](int r, int m, float total) {
    if (m < rows && first + r < n) y[static_cast<size_t>(row0 + m) * n + first + r] = total;
  });
}
