// linear_pairs: one row of x times up to three float matrices, by thread blocks that stay. A warp takes two weight rows at a time, sixteen
// threads each, of which every one holds two neighbouring lanes of the contract; the next chunks of this pair of rows and of the next are
// always on their way through the warp's ring. Macros: STRATA_TYPE, STRATA_STAGES, STRATA_THREADS, STRATA_BLOCKS
// (thread blocks a multiprocessor). k a multiple of 32, rows of every matrix even. Dynamic
// shared memory: x, then a ring a warp. grid.y: rows. STRATA_K: k.
#include "lanes.cuh"
#include "op.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
constexpr int kThreads = STRATA_THREADS, kWarps = kThreads / 32, kStages = STRATA_STAGES, kValueBytes = Layout<T>::bytes;
constexpr int kSteps = 8, kChunk = 32 * kSteps * kValueBytes;  // of 32 values in a chunk of one row; bytes

// Two neighbouring values.
__device__ __forceinline__ float2 two_values(const uint8_t* p) {
  if constexpr (T == QuantType::F32) {
    return *reinterpret_cast<const float2*>(p);
  } else {
    float v[2];
    word_floats<T>(*reinterpret_cast<const uint32_t*>(p), v);
    return {v[0], v[1]};
  }
}

// The chunks of all of a warp's pairs, one after another.
struct Fetcher {
  const uint8_t *w0, *w1, *w2;
  int pairs0, pairs1, pairs, stride, row_bytes;
  int pair, at;  // the next chunk: its pair, and where it begins in a row

  __device__ __forceinline__ void next(uint8_t* to) {
    if (pair < pairs) {
      const uint8_t* w = pair < pairs0 ? w0 : pair < pairs0 + pairs1 ? w1 : w2;
      const int own = pair - (pair < pairs0 ? 0 : pair < pairs0 + pairs1 ? pairs0 : pairs0 + pairs1);
      const uint8_t* from = w + static_cast<size_t>(2 * own) * row_bytes + at;
#pragma unroll
      for (int i = 16 * lane_id(); i < kChunk; i += 512)
        if (at + i < row_bytes) copy_async<16>(to + i, from + i), copy_async<16>(to + kChunk + i, from + row_bytes + i);
      at += kChunk;
      if (at >= row_bytes) at = 0, pair += stride;
    }
    copies_group();
  }
};

// Steps [0, count) of a chunk of this thread's row.
template <bool Whole> __device__ __forceinline__ void add_chunk(const uint8_t* chunk, const float* x, int count, float (&acc)[2]) {
  float2 v[kSteps], f[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (Whole || i < count) v[i] = two_values(chunk + 32 * i * kValueBytes), f[i] = *reinterpret_cast<const float2*>(x + 32 * i);
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (Whole || i < count) acc[0] = fma32(v[i].x, f[i].x, acc[0]), acc[1] = fma32(v[i].y, f[i].y, acc[1]);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, STRATA_BLOCKS)
    linear_pairs(const int* live, const float* x, const uint8_t* w0, float* y0, int n0, const uint8_t* w1, float* y1, int n1,
                 const uint8_t* w2, float* y2, int n2) {
  constexpr int k = STRATA_K;
  STRATA_DYNAMIC_SHARED(shared);
  float* staged = reinterpret_cast<float*>(shared);
  uint8_t* ring = shared + 4 * k + warp_id() * (kStages * 2 * kChunk);
  const int pairs0 = n0 / 2, pairs1 = n1 / 2, pairs = pairs0 + pairs1 + n2 / 2, stride = gridDim.x * kWarps;
  const int mine = warp_id() * gridDim.x + blockIdx.x, half = lane_id() / 16, t = lane_id() % 16;
  Fetcher fetcher{w0, w1, w2, pairs0, pairs1, pairs, stride, k * kValueBytes, mine, 0};
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) fetcher.next(ring + s * 2 * kChunk);
  dependency_launch();
  dependency_wait();
  const int row = blockIdx.y, rows = *live;
#pragma unroll
  for (int i = threadIdx.x; i < k / 4; i += kThreads)
    reinterpret_cast<float4*>(staged)[i] = reinterpret_cast<const float4*>(x + static_cast<size_t>(row) * k)[i];
  if (row >= rows) return copies_wait();
  __syncthreads();
  int slot = 0;
#pragma unroll 1
  for (int pair = mine; pair < pairs; pair += stride) {
    float acc[2] = {};
#pragma unroll 1
    for (int step = 0; step < k / 32; step += kSteps) {
      copies_wait_for_groups<kStages - 2>();
      __syncwarp();  // the chunk is there for all lanes, and all have read the one before it
      fetcher.next(ring + (slot == 0 ? kStages - 1 : slot - 1) * 2 * kChunk);
      const uint8_t* chunk = ring + (2 * slot + half) * kChunk + 2 * t * kValueBytes;
      const int left = k / 32 - step;
      if (left >= kSteps)
        add_chunk<true>(chunk, staged + 32 * step + 2 * t, kSteps, acc);
      else
        add_chunk<false>(chunk, staged + 32 * step + 2 * t, left, acc);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
#pragma unroll
    for (int apart = 8; apart > 0; apart /= 2)  // threads: lanes 16, 8, 4, 2 apart
#pragma unroll
      for (int e = 0; e < 2; ++e) acc[e] = acc[e] + __shfl_xor_sync(kFullWarp, acc[e], apart);
    const bool first = pair < pairs0, second = !first && pair < pairs0 + pairs1;
    const int own = pair - (first ? 0 : second ? pairs0 : pairs0 + pairs1), n = first ? n0 : second ? n1 : n2;
    float* y = first ? y0 : second ? y1 : y2;
    if (t == 0) y[static_cast<size_t>(row) * n + 2 * own + half] = acc[0] + acc[1];
  }
  copies_wait();
}
