// linear_pairs: few rows of x times up to three float matrices, by thread blocks that stay. A warp takes two (or four) weight rows at a
// time, sixteen (eight) threads each, of which every one holds two (four) neighbouring lanes of the contract; the next chunks of these rows
// and of the next ones are always on their way through the warp's ring. Macros: STRATA_TYPE, STRATA_ROWS (all of the step's),
// STRATA_TOGETHER (weight rows of a warp), STRATA_STAGES, STRATA_THREADS, STRATA_BLOCKS (thread blocks a multiprocessor), STRATA_K: k, a
// multiple of 32. Rows of every matrix a multiple of STRATA_TOGETHER. Dynamic shared memory: rows of x, then a ring a warp.
#include "lanes.cuh"
#include "op.cuh"

using namespace strata;

namespace {

constexpr QuantType T = STRATA_TYPE;
constexpr int M = STRATA_ROWS, W = STRATA_TOGETHER, k = STRATA_K;
constexpr int kThreads = STRATA_THREADS, kWarps = kThreads / 32, kStages = STRATA_STAGES, kValueBytes = Layout<T>::bytes;
constexpr int kSteps = 8, kChunk = 32 * kSteps * kValueBytes;  // of 32 values in a chunk of one row; bytes
constexpr int kApart = kChunk + (W == 4 && kValueBytes == 2 ? 64 : 0), kStageBytes = W * kApart;  // rows of a chunk, in banks of their own

// Two or four neighbouring values in shared memory.
template <QuantType Type> __device__ __forceinline__ void load_values(const uint8_t* p, float (&v)[2]) {
  if constexpr (Type == QuantType::F32) {
    const float2 two = *reinterpret_cast<const float2*>(p);
    v[0] = two.x, v[1] = two.y;
  } else {
    word_floats<Type>(*reinterpret_cast<const uint32_t*>(p), v);
  }
}
template <QuantType Type> __device__ __forceinline__ void load_values(const uint8_t* p, float (&v)[4]) {
  Four<Type> four;
  four.raw = *reinterpret_cast<const decltype(four.raw)*>(p);
  four.floats(v);
}

// The chunks of all of a warp's groups of weight rows, one after another.
struct Fetcher {
  const uint8_t *w0, *w1, *w2;
  int groups0, groups1, groups, stride, row_bytes;
  int group, at;  // the next chunk: its group, and where it begins in a row

  __device__ __forceinline__ void next(uint8_t* to) {
    if (group < groups) {
      const uint8_t* w = group < groups0 ? w0 : group < groups0 + groups1 ? w1 : w2;
      const int own = group - (group < groups0 ? 0 : group < groups0 + groups1 ? groups0 : groups0 + groups1);
      const uint8_t* from = w + static_cast<size_t>(W * own) * row_bytes + at;
#pragma unroll
      for (int i = 16 * lane_id(); i < kChunk; i += 512)
        if (at + i < row_bytes) {
#pragma unroll
          for (int r = 0; r < W; ++r) copy_async<16>(to + r * kApart + i, from + r * row_bytes + i);
        }
      at += kChunk;
      if (at >= row_bytes) at = 0, group += stride;
    }
    copies_group();
  }
};

// Steps [0, count) of a chunk of this thread's weight row; x: rows k apart.
template <bool Whole> __device__ __forceinline__ void add_chunk(const uint8_t* chunk, const float* x, int count, float (&acc)[M][W]) {
  constexpr int ahead = M == 1 ? kSteps : kSteps / 2;  // steps that are loaded before the first is added
#pragma unroll
  for (int first = 0; first < kSteps; first += ahead) {
    float v[ahead][W];
#pragma unroll
    for (int i = 0; i < ahead; ++i)
      if (Whole || first + i < count) load_values<T>(chunk + 32 * (first + i) * kValueBytes, v[i]);
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float f[ahead][W];
#pragma unroll
      for (int i = 0; i < ahead; ++i)
        if (Whole || first + i < count) load_values<QuantType::F32>(reinterpret_cast<const uint8_t*>(x + m * k + 32 * (first + i)), f[i]);
#pragma unroll
      for (int i = 0; i < ahead; ++i)
        if (Whole || first + i < count) {
#pragma unroll
          for (int e = 0; e < W; ++e) acc[m][e] = fma32(v[i][e], f[i][e], acc[m][e]);
        }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, STRATA_BLOCKS)
    linear_pairs(const int* live, const float* x, const uint8_t* w0, float* y0, int n0, const uint8_t* w1, float* y1, int n1,
                 const uint8_t* w2, float* y2, int n2) {
  STRATA_DYNAMIC_SHARED(shared);
  float* staged = reinterpret_cast<float*>(shared);
  uint8_t* ring = shared + 4 * M * k + warp_id() * (kStages * kStageBytes);
  const int groups0 = n0 / W, groups1 = n1 / W, groups = groups0 + groups1 + n2 / W, stride = gridDim.x * kWarps;
  const int mine = warp_id() * gridDim.x + blockIdx.x, part = lane_id() / (32 / W), t = lane_id() % (32 / W);
  Fetcher fetcher{w0, w1, w2, groups0, groups1, groups, stride, k * kValueBytes, mine, 0};
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) fetcher.next(ring + s * kStageBytes);
  dependency_launch();
  dependency_wait();
  const int rows = *live;
#pragma unroll
  for (int i = threadIdx.x; i < M * k / 4; i += kThreads) reinterpret_cast<float4*>(staged)[i] = reinterpret_cast<const float4*>(x)[i];
  if (rows <= 0) return copies_wait();
  __syncthreads();
  int slot = 0;
#pragma unroll 1
  for (int group = mine; group < groups; group += stride) {
    float acc[M][W] = {};
#pragma unroll 1
    for (int step = 0; step < k / 32; step += kSteps) {
      copies_wait_for_groups<kStages - 2>();
      __syncwarp();  // the chunk is there for all lanes, and all have read the one before it
      fetcher.next(ring + (slot == 0 ? kStages - 1 : slot - 1) * kStageBytes);
      const uint8_t* chunk = ring + slot * kStageBytes + part * kApart + W * t * kValueBytes;
      const int left = k / 32 - step;
      if (left >= kSteps)
        add_chunk<true>(chunk, staged + 32 * step + W * t, kSteps, acc);
      else
        add_chunk<false>(chunk, staged + 32 * step + W * t, left, acc);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
    const bool first = group < groups0, second = !first && group < groups0 + groups1;
    const int own = group - (first ? 0 : second ? groups0 : groups0 + groups1), n = first ? n0 : second ? n1 : n2;
    float* y = first ? y0 : second ? y1 : y2;
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int apart = 16 / W; apart > 0; apart /= 2)  // threads: lanes 16, 8, .. W apart
#pragma unroll
        for (int e = 0; e < W; ++e) acc[m][e] = acc[m][e] + __shfl_xor_sync(kFullWarp, acc[m][e], apart);
      if (t == 0 && m < rows) y[static_cast<size_t>(m) * n + W * own + part] = array_tree_sum(acc[m]);
    }
  }
  copies_wait();
}
