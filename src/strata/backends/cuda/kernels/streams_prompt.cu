// Residual streams of a prompt's rows. Macros: STRATA_WIDTH (values of a stream, a multiple of 128), STRATA_STREAMS.
#include "quantize.cuh"
#include "row_power.cuh"
#include "step.cuh"

using namespace strata;

namespace {
constexpr int W = STRATA_WIDTH, C = STRATA_STREAMS, kHeld = W / 32, kNormWarps = 4;
constexpr int kAhead = kHeld < 24 ? kHeld : 24;  // values of y that a lane has on their way
constexpr int kBlocks = kHeld > 80 ? 1 : 4;      // a multiprocessor, at least: what a lane holds of wider streams leaves no room
}  // namespace

extern "C" {

// A warp (four a thread block) a stream of a row: a sublayer's output y is added, where it is given, and goes to `sum`; the stream's
// norm to `out`. scales (or null; of four streams only, as a thread block then has one row): what row_scales would find in `out`.
__global__ void __launch_bounds__(32 * kNormWarps, kBlocks)
    stream_norm(const int* live, const float* residual, const float* y, const float* inject, const float* weight, float* sum, float* out,
                float* scales, float eps, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int unit = blockIdx.x * kNormWarps + warp_id(), row = unit / C, c = unit % C;
  if (row >= *live) return;
  const size_t at = static_cast<size_t>(unit) * W + lane_id();
  float x[kHeld], squares = 0.0f;
#pragma unroll
  for (int e = 0; e < kHeld; ++e) x[e] = residual[at + 32 * e];
  if (y != nullptr) {
    const float injected = inject[unit];
    y += static_cast<size_t>(row) * W + lane_id();
    float next[kAhead];  // begun before the division, whose branches no load passes
#pragma unroll
    for (int e = 0; e < kAhead; ++e) next[e] = y[32 * e];
    const float given = 2.0f * sigmoid32(div32(injected, static_cast<float>(C)));
#pragma unroll
    for (int e = 0; e < kHeld; ++e) {
      x[e] = fma32(given, next[e % kAhead], x[e]);
      if (e + kAhead < kHeld) next[e % kAhead] = y[32 * (e + kAhead)];
    }
#pragma unroll
    for (int e = 0; e < kHeld; ++e) sum[at + 32 * e] = x[e];  // after all loads: one that follows a store waits for it
  }
#pragma unroll
  for (int e = 0; e < kHeld; ++e) squares = fma32(x[e], x[e], squares);
  const float inverse = div32(1.0f, sqrt32(div32(warp_tree_sum(squares), static_cast<float>(W)) + eps));
  weight += c * W + lane_id();
  RowPower power;
#pragma unroll
  for (int e = 0; e < kHeld; ++e) {
    const float v = (x[e] * inverse) * __ldg(weight + 32 * e);  // weights pass stores: nobody writes them
    out[at + 32 * e] = v;
    power.add(v);
  }
  if constexpr (C == kNormWarps) {
    if (scales == nullptr) return;
    const float scale = power.of_block<kNormWarps>(faults);
    if (threadIdx.x == 0) scales[row] = scale;
  }
}

// A warp (eight a thread block) takes 128 values of rows in turn: their mean over streams of sigmoid(gate) x, to `out` (or null) and, where asked
// for, as int8 blocks.
__global__ void __launch_bounds__(256) stream_mean(const int* live, const float* x, const float* gate, float* out, int8_t* q, float* d,
                                                   int16_t* sums, uint32_t* faults) {
  dependency_wait();
  dependency_launch();
  const int units = *live * (W / 128);
  for (int unit = blockIdx.x * 8 + warp_id(); unit < units; unit += gridDim.x * 8) {
    const int row = unit / (W / 128), column = unit % (W / 128) * 128 + lane_id() * 4;
    const size_t from = static_cast<size_t>(row) * C * W + column, to = static_cast<size_t>(row) * W + column;
    float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const float4 v = *reinterpret_cast<const float4*>(x + from + c * W), g = *reinterpret_cast<const float4*>(gate + from + c * W);
      total.x = fma32(sigmoid32(g.x), v.x, total.x), total.y = fma32(sigmoid32(g.y), v.y, total.y);
      total.z = fma32(sigmoid32(g.z), v.z, total.z), total.w = fma32(sigmoid32(g.w), v.w, total.w);
    }
    constexpr float n = C;
    total = {div32(total.x, n), div32(total.y, n), div32(total.z, n), div32(total.w, n)};
    if (out != nullptr) *reinterpret_cast<float4*>(out + to) = total;
    if (q != nullptr) quantize_four(total, true, to, q, d, sums, faults);
  }
}

}  // extern "C"
