// A sublayer's last product and the streams after it: R_c + 2 sigmoid(inject_c / C) y, or, with STRATA_STREAMS 0, x + y.
// Macros: STRATA_TYPE (quantised), STRATA_ROWS, STRATA_SEGMENTS, STRATA_AHEAD, STRATA_STAGED (see products.cu), STRATA_STREAMS,
// STRATA_THREADS, STRATA_LENGTH, STRATA_CHAIN_UNROLL. grid.y: groups of STRATA_ROWS rows.
#include "op.cuh"
#include "staged_weights.cuh"
#include "streams.cuh"

using namespace strata;

extern "C" __global__ void __launch_bounds__(STRATA_THREADS) product_write(const int* live, const int8_t* q, const float* d, const int16_t* sums,
                                                                const uint8_t* w, const float* residual, const float* inject, float* out,
                                                                int k, int n) {
  constexpr QuantType T = STRATA_TYPE;
  constexpr int M = STRATA_ROWS, segs = STRATA_SEGMENTS, per_warp = 32 / segs;
  STRATA_DYNAMIC_SHARED(shared);
  uint32_t* table = reinterpret_cast<uint32_t*>(shared);
  float* scratch = reinterpret_cast<float*>(table + Packed<T>::kTableWords) + warp_id() * M * 32;
  float* totals = scratch + blockDim.x * M;
  const StagedRows a = staged_rows<M, segs>(shared + 4 * Packed<T>::kTableWords + 2 * blockDim.x * M * 4, k);
  trace(0);
  const int first = (blockIdx.x * (blockDim.x / 32) + warp_id()) * per_warp;
#if STRATA_STAGED
  using Weights = StagedWeights<T, segs, STRATA_LENGTH>;
  uint8_t* room = shared + ((reinterpret_cast<uint8_t*>(a.sums + M * a.blocks) - shared) + 15) / 16 * 16;
  const StagedChain<T, M, segs, STRATA_LENGTH> chain(room + warp_id() * Weights::kBytes);
  chain.weights.copy(w, n, min(first, n - per_warp));
#else
  SegmentChain<T, M, segs, STRATA_AHEAD, STRATA_LENGTH> chain(w, n, k / kBlock, min(first + lane_id() / segs, n - 1));
  chain.load_first();
#endif
  Packed<T>::template fill<1>(table);
  const int row0 = blockIdx.y * M;
  dependency_settled();  // the streams
  const int rows = min(*live - row0, M);
  StreamWriter<STRATA_STREAMS, M * per_warp> writer(residual, inject, out, n);
  if (rows > 0) writer.load(row0, rows, first, per_warp);
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
  const int8_t* codes = q + static_cast<size_t>(row0) * k;
  const float* scales = d + static_cast<size_t>(row0) * a.blocks;
  const int16_t* both = sums + static_cast<size_t>(row0) * 2 * a.blocks;
#if STRATA_STAGED
  if constexpr (M == 1) stage_even<M, segs, STRATA_LENGTH>(a, codes, scales, both, 1);  // which does not wait for the number of rows
  if (rows <= 0) return copies_wait();
  if constexpr (M > 1) stage_even<M, segs, STRATA_LENGTH>(a, codes, scales, both, rows);
#else
  if (rows <= 0) return;
  stage_rows<M, segs>(a, codes, scales, both, k, rows);
#endif
  __syncthreads();
  trace(3);
  float part[M];
  chain.run(table, a, part);
  trace(4);
  add_segments<M, segs>(part, scratch, [&](int r, int m, float total) { totals[m * 32 + r] = total; });
  __syncwarp();
  writer.store(row0, rows, first, per_warp, [&](int r, int m) { return totals[m * 32 + r]; });
  trace(5);
}
