// Reading the residual streams in two launches (docs/contract.md "streams read"). Macros: STRATA_TYPE (float type of down and up),
// STRATA_INJECT (of the injection's rows), STRATA_STREAMS, STRATA_WIDTH (of a stream), STRATA_RANK, STRATA_ROWS_A_BLOCK.
#include "ahead.cuh"
#include "lanes.cuh"
#include "op.cuh"
#include "step.cuh"

using namespace strata;

namespace {

constexpr int C = STRATA_STREAMS, kWidth = STRATA_WIDTH, kAll = C * kWidth, kRank = STRATA_RANK;
constexpr int kThreads = 256, kRows = STRATA_ROWS_A_BLOCK;  // kRows: rows of down whose bytes a thread block holds
constexpr int kRowBytes = kAll * Layout<STRATA_TYPE>::bytes, kInjectBytes = kAll * Layout<STRATA_INJECT>::bytes;
constexpr int kInjectRows = kRows * kRowBytes >= kInjectBytes ? kRows * kRowBytes / kInjectBytes : 1;
constexpr int kDownBlocks = (kRank + kRows - 1) / kRows;
static_assert(kWidth % 32 == 0 && kAll % 4 == 0, "streams of whole blocks");

// x = fma(a(i), b(i), x) for steps i = 0 .. Steps - 1 in order; the operands of the next steps are read while a batch is added.
template <int Steps, class A, class B> __device__ __forceinline__ float chain(A a, B b) {
  constexpr int batch = 16, whole = Steps / batch * batch;
  float sum = 0.0f, next_a[batch], next_b[batch];
  if constexpr (whole > 0)
#pragma unroll
    for (int i = 0; i < batch; ++i) next_a[i] = a(i), next_b[i] = b(i);
#pragma unroll 1
  for (int from = 0; from < whole; from += batch) {
    float now_a[batch], now_b[batch];
#pragma unroll
    for (int i = 0; i < batch; ++i) now_a[i] = next_a[i], now_b[i] = next_b[i];
    const int then = min(from + batch, whole - batch);  // the last batch is read twice: no branch
#pragma unroll
    for (int i = 0; i < batch; ++i) next_a[i] = a(then + i), next_b[i] = b(then + i);
#pragma unroll
    for (int i = 0; i < batch; ++i) sum = fma32(now_a[i], now_b[i], sum);
  }
#pragma unroll
  for (int i = whole; i < Steps; ++i) sum = fma32(a(i), b(i), sum);
  return sum;
}

// The dot of one row in shared memory with x: by one warp, a lane a contract lane.
template <QuantType T> __device__ __forceinline__ float shared_dot(const uint8_t* w, const float* x) {
  const uint8_t* mine = w + lane_id() * Layout<T>::bytes;
  const float* other = x + lane_id();
  return warp_tree_sum(chain<kAll / 32>([&](int i) { return one_value<T>(mine + 32 * i * Layout<T>::bytes); }, [&](int i) { return other[32 * i]; }));
}

// The streams' norm into x [kAll], by the whole thread block; scales[c] of each stream.
__device__ __forceinline__ void norm_streams(const float* residual, const float (&weight)[(kAll / 4 + kThreads - 1) / kThreads][4], float eps,
                                             float* x, float* scales, bool alive) {
  constexpr int kEach = (kAll / 4 + kThreads - 1) / kThreads;
  float4 value[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = threadIdx.x + kThreads * i;
    if (at < kAll / 4) value[i] = reinterpret_cast<const float4*>(residual)[at];
  }
  if (!alive) return;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = threadIdx.x + kThreads * i;
    if (at < kAll / 4) reinterpret_cast<float4*>(x)[at] = value[i];
  }
  __syncthreads();
  for (int c = warp_id(); c < C; c += kThreads / 32) {
    const float* row = x + c * kWidth + lane_id();
    const auto value_at = [&](int i) { return row[32 * i]; };
    const float sum = chain<kWidth / 32>(value_at, value_at);
    const float mean = div32(warp_tree_sum(sum), static_cast<float>(kWidth));
    if (lane_id() == 0) scales[c] = div32(1.0f, sqrt32(mean + eps));
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = threadIdx.x + kThreads * i;
    if (at >= kAll / 4) continue;
    const float scale = scales[4 * at / kWidth];
    float4 v = value[i];
    v.x = (v.x * scale) * weight[i][0], v.y = (v.y * scale) * weight[i][1];
    v.z = (v.z * scale) * weight[i][2], v.w = (v.w * scale) * weight[i][3];
    reinterpret_cast<float4*>(x)[at] = v;
  }
  __syncthreads();
}

}  // namespace

extern "C" {

// low[r] = silu(down_r . n / C), logits[c] = inject_c . n, scales[c]: n the streams' norm. Grid (rows of down and inject, rows);
// the bytes of a thread block's rows are on their way before the streams are there.
__global__ void __launch_bounds__(kThreads) streams_low(const int* live, const float* residual, const float* norm, const uint8_t* down,
                                                        const uint8_t* inject, float* low, float* logits, float* scales, float eps, const uint8_t* ahead,
    uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  float* x = reinterpret_cast<float*>(shared);
  uint8_t* w = shared + kAll * 4;
  __shared__ float scale[C];
  const bool injects = static_cast<int>(blockIdx.x) >= kDownBlocks;
  const int first = injects ? (static_cast<int>(blockIdx.x) - kDownBlocks) * kInjectRows : static_cast<int>(blockIdx.x) * kRows;
  const int count = injects ? min(C - first, kInjectRows) : min(kRank - first, kRows);
  const int row_bytes = injects ? kInjectBytes : kRowBytes;
  const uint8_t* from = (injects ? inject : down) + static_cast<size_t>(first) * row_bytes;
  for (int i = threadIdx.x; i < count * row_bytes / 16; i += kThreads) copy_async<16>(w + 16 * i, from + 16 * i);
  constexpr int kEach = (kAll / 4 + kThreads - 1) / kThreads;
  float weight[kEach][4];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = threadIdx.x + kThreads * i;
    if (at >= kAll / 4) continue;
    const float4 v = __ldg(reinterpret_cast<const float4*>(norm) + at);
    weight[i][0] = v.x, weight[i][1] = v.y, weight[i][2] = v.z, weight[i][3] = v.w;
  }
  ask_ahead(ahead, ahead_bytes);
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.y, rows = *live;  // which the first reads of the streams do not wait for
  norm_streams(residual + static_cast<size_t>(row) * kAll, weight, eps, x, scale, row < rows);
  copies_wait();
  if (row >= rows) return;
  __syncthreads();
  if (blockIdx.x == 0 && static_cast<int>(threadIdx.x) < C) scales[row * C + threadIdx.x] = scale[threadIdx.x];
  for (int r = warp_id(); r < count; r += kThreads / 32) {
    if (injects) {
      const float total = shared_dot<STRATA_INJECT>(w + r * kInjectBytes, x);
      if (lane_id() == 0) logits[row * C + first + r] = total;
    } else {
      const float total = shared_dot<STRATA_TYPE>(w + r * kRowBytes, x);
      if (lane_id() == 0) low[row * kRank + first + r] = silu32(div32(total, static_cast<float>(C)));
    }
  }
}

// out = mean over streams of sigmoid(up . low) n, float and, where q is given, q8. Grid (32 features, rows), four threads a row of up,
// whose values are in registers before `low` is there.
__global__ void __launch_bounds__(128 * C) streams_mix(const int* live, const float* residual, const float* norm, const float* scales,
                                                       const uint8_t* up, const float* low, float* out, int8_t* q, float* d, int16_t* sums,
                                                       uint32_t* faults, const uint8_t* ahead,
    uint32_t ahead_bytes) {
  constexpr int kSteps = kRank / 32;
  static_assert(kRank % 32 == 0, "whole steps of four threads");
  __shared__ __align__(16) float x[kRank];
  __shared__ float gate[C][32], normed[C][32];
  const int quad = threadIdx.x / 4, j = threadIdx.x % 4, c = quad / 32, f = quad % 32, feature = blockIdx.x * 32 + f;
  const uint8_t* from = up + (static_cast<size_t>(c * kWidth + feature) * kRank + 8 * j) * Layout<STRATA_TYPE>::bytes;
  Eight<STRATA_TYPE> w[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) w[i].load(from + static_cast<size_t>(32 * i) * Layout<STRATA_TYPE>::bytes);
  const float weight = norm[c * kWidth + feature];
  ask_ahead(ahead, ahead_bytes);
  dependency_wait();
  dependency_launch();
  const int row = blockIdx.y, rows = *live;
  const float before = residual[(static_cast<size_t>(row) * C + c) * kWidth + feature], scale = scales[row * C + c];
  for (int i = threadIdx.x; i < kRank; i += 128 * C) x[i] = low[row * kRank + i];
  if (row >= rows) return;
  __syncthreads();
  float acc[8] = {};
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    float v[8];
    w[i].floats(v);
    fma8(v, x + 32 * i + 8 * j, acc);
  }
  const float total = quad_tree_sum(acc);
  if (j == 0) gate[c][f] = sigmoid32(total), normed[c][f] = (before * scale) * weight;
  __syncthreads();
  if (warp_id() != 0) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < C; ++i) sum = fma32(gate[i][lane_id()], normed[i][lane_id()], sum);
  const float value = div32(sum, static_cast<float>(C));
  const size_t at = static_cast<size_t>(row) * kWidth + blockIdx.x * 32;
  out[at + lane_id()] = value;
  if (q == nullptr) return;
  if (!finite32(value)) report(faults, kFaultNonFinite);
  quantize_block(value, q + at, d + at / 32, sums + at / 16);
}

}  // extern "C"
