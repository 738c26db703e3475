// Reading the residual streams in two launches (docs/contract.md "streams read"). Macros: STRATA_TYPE (float type of down and up),
// STRATA_INJECT (of the injection's rows), STRATA_STREAMS, STRATA_WIDTH (of a stream), STRATA_RANK, STRATA_ROWS_A_BLOCK (of weights),
// STRATA_TOGETHER (rows of the step that a thread block of streams_low norms side by side), STRATA_MIX_ROWS (rows of one of streams_mix).
#include "ahead.cuh"
#include "lanes.cuh"
#include "op.cuh"
#include "step.cuh"

using namespace strata;

namespace {

constexpr int C = STRATA_STREAMS, kWidth = STRATA_WIDTH, kAll = C * kWidth, kRank = STRATA_RANK;
constexpr int kThreads = 256, kWarps = kThreads / 32;  // of a row
constexpr int kTogether = STRATA_TOGETHER, kMixRows = STRATA_MIX_ROWS;
constexpr int kRows = STRATA_ROWS_A_BLOCK;  // of down whose bytes a thread block holds
constexpr int kRowBytes = kAll * Layout<STRATA_TYPE>::bytes, kInjectBytes = kAll * Layout<STRATA_INJECT>::bytes;
constexpr int kInjectRows = kRows * kRowBytes >= kInjectBytes ? kRows * kRowBytes / kInjectBytes : 1;
constexpr int kDownBlocks = (kRank + kRows - 1) / kRows;
static_assert(kWidth % 128 == 0, "turned by quads of steps");

// A lane's value of step s is value 32 s + lane. Turned: four steps of a lane lie together, so that it reads 16 bytes at a time.
constexpr int kSteps = kAll / 32, kQuads = kSteps / 4, kEach = (kQuads + kWarps - 1) / kWarps;  // quads of a warp

// The warp among those of its row.
__device__ __forceinline__ int row_warp() { return kTogether == 1 ? warp_id() : warp_id() % kWarps; }

// This thread's quads of a row: quad row_warp() + kWarps i at [i].
struct Quads {
  float4 at[kEach];
  template <class F> static __device__ __forceinline__ void each(F f) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int quad = row_warp() + kWarps * i;
      if (quad < kQuads) f(i, quad);
    }
  }
  __device__ __forceinline__ void load(const float* from) {
    each([&](int i, int quad) {
      const float* p = from + 128 * quad + lane_id();
      at[i] = {p[0], p[32], p[64], p[96]};
    });
  }
  __device__ __forceinline__ void store(float4* turned) const {
    each([&](int i, int quad) { turned[32 * quad + lane_id()] = at[i]; });
  }
};

template <int Bytes> struct Word {
  using type = uint32_t;
};
template <> struct Word<2> {
  using type = uint16_t;
};

__device__ __forceinline__ uint32_t pair(uint32_t low, uint32_t high) { return low | high << 16; }

// Turns a row of weights in place, 512 bytes at a time: a lane's values of 16 / Bytes steps lie together. By one warp.
template <int Bytes> __device__ __forceinline__ void turn(uint8_t* row) {
  using Value = typename Word<Bytes>::type;
  constexpr int steps = 16 / Bytes, groups = kSteps / steps, batch = groups % 4 == 0 ? 4 : groups % 2 == 0 ? 2 : 1;
#pragma unroll 1
  for (int g = 0; g < groups; g += batch) {
    alignas(16) Value v[batch][steps];
#pragma unroll
    for (int b = 0; b < batch; ++b)
#pragma unroll
      for (int i = 0; i < steps; ++i) v[b][i] = reinterpret_cast<const Value*>(row + 512 * (g + b))[32 * i + lane_id()];
    __syncwarp();
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      uint4 word;
      if constexpr (Bytes == 4)
        word = make_uint4(v[b][0], v[b][1], v[b][2], v[b][3]);
      else
        word = make_uint4(pair(v[b][0], v[b][1]), pair(v[b][2], v[b][3]), pair(v[b][4], v[b][5]), pair(v[b][6], v[b][7]));
      reinterpret_cast<uint4*>(row + 512 * (g + b))[lane_id()] = word;
    }
  }
  __syncwarp();
}

// Eight steps of a lane's turned weights and values.
template <QuantType T> struct Unit {
  Eight<T> w;
  float4 low, high;
  __device__ __forceinline__ void load(const uint8_t* row, const float4* x, int u) {
    if constexpr (Layout<T>::bytes == 2) {
      w.raw = reinterpret_cast<const uint4*>(row)[32 * u + lane_id()];
    } else {
      w.low = reinterpret_cast<const float4*>(row)[64 * u + lane_id()], w.high = reinterpret_cast<const float4*>(row)[64 * u + 32 + lane_id()];
    }
    low = x[64 * u + lane_id()], high = x[64 * u + 32 + lane_id()];
  }
  __device__ __forceinline__ float add(float sum) const {
    float v[8];
    w.floats(v);
    sum = fma32(v[3], low.w, fma32(v[2], low.z, fma32(v[1], low.y, fma32(v[0], low.x, sum))));
    return fma32(v[7], high.w, fma32(v[6], high.z, fma32(v[5], high.y, fma32(v[4], high.x, sum))));
  }
};

// The dot of one turned row with the turned x: by one warp, a lane a contract lane; the next units are read while one is added.
template <QuantType T> __device__ __forceinline__ float turned_dot(const uint8_t* row, const float4* x) {
  constexpr int units = kSteps / 8;
  Unit<T> unit[3];
  unit[0].load(row, x, 0), unit[1].load(row, x, min(1, units - 1));
  float sum = 0.0f;
#pragma unroll 3
  for (int u = 0; u < units; ++u) {
    unit[(u + 2) % 3].load(row, x, min(u + 2, units - 1));
    sum = unit[u % 3].add(sum);
  }
  return warp_tree_sum(sum);
}

// The streams' norm, turned, into x, by all threads of the row; scales[c] of each stream. All rows of the thread block at once. `streams`: this thread's values.
__device__ __forceinline__ void norm_streams(const Quads& streams, const Quads& weight, float eps, float4* x, float* scales) {
  streams.store(x);
  __syncthreads();
  trace(3);
  for (int c = row_warp(); c < C; c += kWarps) {
    const float4* mine = x + c * (kWidth / 4) + lane_id();
    float sum = 0.0f;
#pragma unroll 20
    for (int i = 0; i < kWidth / 128; ++i) {
      const float4 v = mine[32 * i];
      sum = fma32(v.w, v.w, fma32(v.z, v.z, fma32(v.y, v.y, fma32(v.x, v.x, sum))));
    }
    const float mean = div32(warp_tree_sum(sum), static_cast<float>(kWidth));
    if (lane_id() == 0) scales[c] = div32(1.0f, sqrt32(mean + eps));
  }
  trace(4);
  __syncthreads();
  trace(5);
  Quads::each([&](int i, int quad) {
    const float scale = scales[quad / (kWidth / 128)];
    const float4 v = streams.at[i], w = weight.at[i];
    x[32 * quad + lane_id()] = {(v.x * scale) * w.x, (v.y * scale) * w.y, (v.z * scale) * w.z, (v.w * scale) * w.w};
  });
  __syncthreads();
}

}  // namespace

extern "C" {

// low[r] = silu(down_r . n / C), logits[c] = inject_c . n, scales[c]: n the streams' norm. Grid (rows of down and inject, rows); with
// several rows together (rows of down and inject, 1). The bytes of a thread block's rows are on their way before the streams are there.
__global__ void __launch_bounds__(kTogether * kThreads) streams_low(const int* live, const float* residual, const float* norm, const uint8_t* down,
                                                        const uint8_t* inject, float* low, float* logits, float* scales, float eps, const uint8_t* ahead,
    uint32_t ahead_bytes) {
  STRATA_DYNAMIC_SHARED(shared);
  __shared__ float scale[kTogether][C];
  trace(0);
  const bool injects = static_cast<int>(blockIdx.x) >= kDownBlocks;
  const int first = injects ? (static_cast<int>(blockIdx.x) - kDownBlocks) * kInjectRows : static_cast<int>(blockIdx.x) * kRows;
  const int count = injects ? min(C - first, kInjectRows) : min(kRank - first, kRows);
  const int row_bytes = injects ? kInjectBytes : kRowBytes, mine = warp_id();  // a warp a row
  uint8_t* held = shared + kTogether * kAll * 4;
  uint8_t* w = held + mine * row_bytes;
  const uint8_t* from = (injects ? inject : down) + static_cast<size_t>(first + mine) * row_bytes;
  if (mine < count)
    for (int i = lane_id(); i < row_bytes / 16; i += 32) copy_async<16>(w + 16 * i, from + 16 * i);
  Quads weight, streams;
  weight.load(norm);
  ask_ahead(ahead, ahead_bytes);
  if (mine < count) {
    copies_wait();
    __syncwarp();
    if (injects)
      turn<Layout<STRATA_INJECT>::bytes>(w);
    else
      turn<Layout<STRATA_TYPE>::bytes>(w);
  }
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
  const int own = kTogether == 1 ? 0 : warp_id() / kWarps, rows = *live;  // which the first reads of the streams do not wait for
  float4* x = reinterpret_cast<float4*>(shared);
  int row0 = blockIdx.y * kTogether;
  streams.load(residual + static_cast<size_t>(row0 + own) * kAll);
#pragma unroll 1
  for (; row0 < rows; row0 += kTogether) {
    norm_streams(streams, weight, eps, x + own * (kAll / 4), scale[own]);
    const int next = row0 + kTogether;
    if (kTogether > 1 && next + own < rows) streams.load(residual + static_cast<size_t>(next + own) * kAll);
    trace(6);
    const int part = threadIdx.x % kThreads;
    if (blockIdx.x == 0 && part < C && row0 + own < rows) scales[(row0 + own) * C + part] = scale[own][part];
    if (mine < count * kTogether) {
      const int m = kTogether == 1 ? 0 : mine / count, at = mine - m * count, row = row0 + m;
      const float4* normed = x + m * (kAll / 4);
      const uint8_t* turned = held + at * row_bytes;
      if (injects) {
        const float total = turned_dot<STRATA_INJECT>(turned, normed);
        if (lane_id() == 0 && row < rows) logits[row * C + first + at] = total;
      } else {
        const float total = turned_dot<STRATA_TYPE>(turned, normed);
        trace(7);
        if (lane_id() == 0 && row < rows) low[row * kRank + first + at] = silu32(div32(total, static_cast<float>(C)));
        trace(8);
      }
    }
    if (kTogether == 1) break;  // a thread block has one row
    if (next < rows) __syncthreads();  // x and scales have been read
  }
}

// out = mean over streams of sigmoid(up . low) n, float and, where q is given, q8. Grid (32 features, groups of kMixRows rows), four
// threads a row of up, whose values are in registers before `low` is there.
__global__ void __launch_bounds__(128 * C) streams_mix(const int* live, const float* residual, const float* norm, const float* scales,
                                                       const uint8_t* up, const float* low, float* out, int8_t* q, float* d, int16_t* sums,
                                                       uint32_t* faults, const uint8_t* ahead,
    uint32_t ahead_bytes) {
  constexpr int kSteps = kRank / 32;
  static_assert(kRank % 32 == 0, "whole steps of four threads");
  __shared__ __align__(16) float x[kMixRows][kRank];
  __shared__ float gate[kMixRows][C][32], normed[kMixRows][C][32];
  trace(0);
  const int quad = threadIdx.x / 4, j = threadIdx.x % 4, c = quad / 32, f = quad % 32, feature = blockIdx.x * 32 + f;
  const uint8_t* from = up + (static_cast<size_t>(c * kWidth + feature) * kRank + 8 * j) * Layout<STRATA_TYPE>::bytes;
  Eight<STRATA_TYPE> w[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) w[i].load(from + static_cast<size_t>(32 * i) * Layout<STRATA_TYPE>::bytes);
  const float weight = norm[c * kWidth + feature];
  ask_ahead(ahead, ahead_bytes);
  dependency_settled();  // the streams; their scales and `low` are the last launch's
  const int row0 = blockIdx.y * kMixRows, rows = kMixRows == 1 ? *live - row0 : min(*live - row0, kMixRows);
  const float* streams = residual + (static_cast<size_t>(row0) * C + c) * kWidth + feature;
  const float before = *streams;
  if constexpr (kMixRows > 1)
    for (int m = 1; m < rows; ++m)
      if (j == 0) normed[m][c][f] = streams[static_cast<size_t>(m) * C * kWidth];
  trace(1);
  dependency_wait();
  trace(2);
  dependency_launch();
  const float scale = scales[row0 * C + c];
  if (kMixRows == 1) {  // which does not wait for the number of rows
    for (int i = threadIdx.x; i < kRank; i += 128 * C) x[0][i] = low[row0 * kRank + i];
  } else {
    for (int i = threadIdx.x; i < rows * kRank; i += 128 * C) (&x[0][0])[i] = low[row0 * kRank + i];
  }
  if (rows <= 0) return;
  __syncthreads();
  trace(3);
  const auto gate_row = [&](int m, float value, float inverse) {
    float acc[8] = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float v[8];
      w[i].floats(v);
      fma8(v, x[m] + 32 * i + 8 * j, acc);
    }
    const float total = quad_tree_sum(acc);
    trace(4);
    if (j == 0) gate[m][c][f] = sigmoid32(total), normed[m][c][f] = (value * inverse) * weight;
  };
  const auto mean_row = [&](int m) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < C; ++i) sum = fma32(gate[m][i][lane_id()], normed[m][i][lane_id()], sum);
    const float value = div32(sum, static_cast<float>(C));
    const size_t at = static_cast<size_t>(row0 + m) * kWidth + blockIdx.x * 32;
    out[at + lane_id()] = value;
    if (q == nullptr) return;
    if (!finite32(value)) report(faults, kFaultNonFinite);
    quantize_block(value, q + at, d + at / 32, sums + at / 16);
  };
  gate_row(0, before, scale);
  if constexpr (kMixRows > 1) {
#pragma unroll 1
    for (int m = 1; m < rows; ++m) gate_row(m, normed[m][c][f], scales[(row0 + m) * C + c]);
  }
  __syncthreads();
  if constexpr (kMixRows > 1) {
    for (int m = warp_id(); m < rows; m += 4 * C) mean_row(m);
  } else if (warp_id() == 0) {
    mean_row(0);
  }
  trace(5);
}

}  // extern "C"
