// linear_row: linear_f's product for one or two rows, a warp a weight row, lane l the contract's lane l. A warp's weights run through
// a ring of its own in shared memory, which keeps kStages - 1 chunks on their way without a register; warps never wait for one
// another. Macros: STRATA_TYPE, STRATA_ROWS (M). `whole`: steps of 32 values that may be read 16 bytes at a time. grid.x: thread blocks
// of matrix 0, of matrix 1, of matrix 2; grid.y: groups of M rows.
#include "lanes.cuh"
#include "matrices.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
constexpr int M = STRATA_ROWS, kStages = 8, kChunk = 512;          // chunks of the ring; bytes, 16 a lane
constexpr int kValueBytes = Layout<T>::bytes, kSteps = kChunk / kValueBytes / 32;  // of 32 values in a chunk

struct Ring {
  uint8_t* room;         // [kStages][kChunk]
  const uint8_t* from;   // the weight row
  int nbytes, chunks;

  // Chunk c is on its way; past the end an empty group keeps the count.
  __device__ __forceinline__ void fetch(int c) const {
    const int at = c * kChunk + 16 * lane_id();
    if (at < nbytes) copy_async<16>(room + c % kStages * kChunk + 16 * lane_id(), from + at);
    copies_group();
  }
};

// This lane's values of the rows for chunk c; they are on their way while the chunk before is used.
__device__ __forceinline__ void fetch_rows(const float* in, int c, int k, int rows, int whole, float (&x)[M][kSteps]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
#pragma unroll
    for (int m = 0; m < M; ++m)
      x[m][i] = m < rows && c * kSteps + i < whole ? in[static_cast<size_t>(m) * k + 32 * (c * kSteps + i)] : 0.0f;
}

// Steps [0, count) of a chunk.
template <bool Whole>
__device__ __forceinline__ void steps(const uint8_t* chunk, const float (&x)[M][kSteps], int count, float (&acc)[M]) {
  float v[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (Whole || i < count) v[i] = one_value<T>(chunk + (32 * i + lane_id()) * kValueBytes);
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (Whole || i < count) {
#pragma unroll
      for (int m = 0; m < M; ++m) acc[m] = fma32(v[i], x[m][i], acc[m]);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(256) linear_row(const int* live, const float* x, const uint8_t* w0, float* y0, int n0,
                                                             const uint8_t* w1, float* y1, int n1, const uint8_t* w2, float* y2,
                                                             int n2, int k, int whole) {
  STRATA_DYNAMIC_SHARED(shared);
  const int each = blockDim.x / 32;
  const auto [w, y, n, block] = matrix_of_block(each, w0, y0, n0, w1, y1, n1, w2, y2, n2);
  const int row = block * each + warp_id(), nbytes = 32 * whole * kValueBytes;
  const uint8_t* weights = w + static_cast<size_t>(min(row, n - 1)) * k * kValueBytes;
  const Ring ring = {shared + warp_id() * kStages * kChunk, weights, nbytes, (nbytes + kChunk - 1) / kChunk};
#pragma unroll
  for (int c = 0; c < kStages - 1; ++c) ring.fetch(c);
  dependency_launch();
  dependency_wait();
  const int row0 = blockIdx.y * M, rows = min(*live - row0, M);
  if (rows <= 0 || row >= n) return copies_wait();
  const float* in = x + static_cast<size_t>(row0) * k + lane_id();
  float acc[M] = {}, next[M][kSteps];
  fetch_rows(in, 0, k, rows, whole, next);
#pragma unroll 1
  for (int c = 0; c < ring.chunks; ++c) {
    float now[M][kSteps];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int i = 0; i < kSteps; ++i) now[m][i] = next[m][i];
    fetch_rows(in, c + 1, k, rows, whole, next);
    copies_wait_for_groups<kStages - 2>();
    __syncwarp();  // the chunk is there for all lanes, and all have read the one before it
    const uint8_t* chunk = ring.room + c % kStages * kChunk;
    ring.fetch(c + kStages - 1);
    const int left = whole - c * kSteps;
    if (left >= kSteps) {
      steps<true>(chunk, now, kSteps, acc);
    } else {
      steps<false>(chunk, now, left, acc);
    }
  }
  const int at = 32 * whole + lane_id();  // what is left, value by value
  for (int i = at; i < k; i += 32) {
    const float v = one_value<T>(weights + static_cast<size_t>(i) * kValueBytes);
#pragma unroll
    for (int m = 0; m < M; ++m)
      if (m < rows) acc[m] = fma32(v, in[static_cast<size_t>(m) * k + i - lane_id()], acc[m]);
  }
#pragma unroll
  for (int m = 0; m < M; ++m) {
    const float total = warp_tree_sum(acc[m]);
    if (lane_id() == 0 && m < rows) y[static_cast<size_t>(row0 + m) * n + row] = total;
  }
}
