// Several products of the same rows in one launch: up to six matrices of up to three types, quantised (rows as q8) or float (rows
// as float). Macros: STRATA_TYPE0 .. 2 (types), STRATA_KIND0 .. 5 (type of each matrix, by number), STRATA_ROWS, STRATA_SEGMENTS,
// STRATA_AHEAD (product.cuh), STRATA_FLOAT_AHEAD (values of a float row that a lane has on their way; 0: the whole row comes
// through shared memory), STRATA_STAGED (whether
// quantised weights come through shared memory). Thread blocks of matrix i end at end<i>; grid.y: groups of STRATA_ROWS rows.
#include "op.cuh"
#include "row_chain.cuh"
#include "staged_weights.cuh"

using namespace strata;

namespace {

constexpr int M = STRATA_ROWS, kSegs = STRATA_SEGMENTS, kThreads = 256;

struct Rows {
  const int* live;
  const int8_t* q;
  const float* d;
  const int16_t* sums;
  const float* x;
  int k;
};

struct Matrix {
  const uint8_t* w;
  float* y;
  int n, block;
};

template <QuantType T> __device__ __forceinline__ void product(const Rows& in, const Matrix& p, uint8_t* shared) {
  const int row0 = blockIdx.y * M;
  if constexpr (Layout<T>::quantised) {
    constexpr int per_warp = 32 / kSegs;
    uint32_t* table = reinterpret_cast<uint32_t*>(shared);
    float* scratch = reinterpret_cast<float*>(table + Packed<T>::kTableWords);
    const StagedRows a = staged_rows<M, kSegs>(reinterpret_cast<uint8_t*>(scratch + kThreads * M), in.k);
    const int first = (p.block * (kThreads / 32) + warp_id()) * per_warp;
#if STRATA_STAGED
    using Weights = StagedWeights<T, kSegs, STRATA_LENGTH>;
    uint8_t* room = shared + ((reinterpret_cast<uint8_t*>(a.sums + M * a.blocks) - shared) + 15) / 16 * 16;
    const StagedChain<T, M, kSegs, STRATA_LENGTH> chain(room + warp_id() * Weights::kBytes);
    chain.weights.copy(p.w, p.n, min(first, p.n - per_warp));
#else
    SegmentChain<T, M, kSegs, STRATA_AHEAD, STRATA_LENGTH> chain(p.w, p.n, in.k / kBlock, min(first + lane_id() / kSegs, p.n - 1));
    chain.load_first();
#endif
    Packed<T>::template fill<1>(table);
    dependency_wait();
    dependency_launch();
    const int rows = min(*in.live - row0, M);
    if (rows <= 0) return copies_wait();
    stage_rows<M, kSegs>(a, in.q + static_cast<size_t>(row0) * in.k, in.d + static_cast<size_t>(row0) * a.blocks,
                         in.sums + static_cast<size_t>(row0) * 2 * a.blocks, in.k, rows);
    __syncthreads();
    float part[M];
    chain.run(table, a, part);
    add_segments<M, kSegs>(part, scratch + warp_id() * M * 32, [&](int r, int m, float total) {
      if (m < rows && first + r < p.n) p.y[static_cast<size_t>(row0 + m) * p.n + first + r] = total;
    });
  } else {
    const int row = p.block * (kThreads / 32) + warp_id();
    const uint8_t* w = p.w + static_cast<size_t>(min(row, p.n - 1)) * in.k * Layout<T>::bytes;
    constexpr bool whole = STRATA_FLOAT_AHEAD == 0;  // rows of weights lie in shared memory, one row of x besides
    RowChain<T, M, whole ? 1 : STRATA_FLOAT_AHEAD> chain(w, in.k);
    uint8_t* copied = shared + (M == 1 ? 4 * in.k : 0) + warp_id() * in.k * Layout<T>::bytes;
    if constexpr (whole) {
      for (int i = lane_id(); i < in.k * Layout<T>::bytes / 16; i += 32) copy_async<16>(copied + 16 * i, w + 16 * i);
    } else {
      chain.load_first();
    }
    dependency_wait();
    dependency_launch();
    const int rows = min(*in.live - row0, M);
    if (rows <= 0) return copies_wait();
    const float* x = in.x + static_cast<size_t>(row0) * in.k;
    if constexpr (M == 1) {  // one row fits beside the weights
      float* staged = reinterpret_cast<float*>(shared);
#pragma unroll 4
      for (int i = threadIdx.x; i < in.k; i += kThreads) staged[i] = x[i];
      copies_wait();
      __syncthreads();
      x = staged;
    } else if constexpr (whole) {
      copies_wait();
      __syncwarp();
    }
    if (row >= p.n) return;
    float sum[M];
    if constexpr (whole && M == 1)
      sum[0] = lane_dot<T>(copied, x, in.k);
    else if constexpr (whole)
      lane_dots<T, M>(copied, x, in.k, rows, in.k, sum);
    else
      chain.run(x, in.k, rows, sum);
#pragma unroll
    for (int m = 0; m < M; ++m)
      if (lane_id() == 0 && m < rows) p.y[static_cast<size_t>(row0 + m) * p.n + row] = sum[m];
  }
}

}  // namespace

#define STRATA_MATRIX(i) const uint8_t *w##i, float *y##i, int n##i, int end##i
#define STRATA_CHOOSE(i, before)                                  \
  if (block >= before && block < end##i) {                        \
    p = {w##i, y##i, n##i, block - before};                       \
    kind = STRATA_KIND##i;                                        \
  }

extern "C" __global__ void __launch_bounds__(kThreads) products(const int* live, const int8_t* q, const float* d, const int16_t* sums,
                                                                const float* x, STRATA_MATRIX(0), STRATA_MATRIX(1), STRATA_MATRIX(2),
                                                                STRATA_MATRIX(3), STRATA_MATRIX(4), STRATA_MATRIX(5), int k) {
  STRATA_DYNAMIC_SHARED(shared);
  const int block = blockIdx.x;
  Matrix p{};
  int kind = 0;
  STRATA_CHOOSE(0, 0)
  STRATA_CHOOSE(1, end0)
  STRATA_CHOOSE(2, end1)
  STRATA_CHOOSE(3, end2)
  STRATA_CHOOSE(4, end3)
  STRATA_CHOOSE(5, end4)
  const Rows in{live, q, d, sums, x, k};
  if (kind == 0) return product<STRATA_TYPE0>(in, p, shared);
#ifdef STRATA_TYPE1
  if (kind == 1) return product<STRATA_TYPE1>(in, p, shared);
#endif
#ifdef STRATA_TYPE2
  if (kind == 2) return product<STRATA_TYPE2>(in, p, shared);
#endif
}
