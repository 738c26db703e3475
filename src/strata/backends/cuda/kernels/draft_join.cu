// draft_join: what a draft layer's join multiplies, in one launch: of each row and stream c, the normed embedding of the row's token and
// then stream c normed, as int8 blocks: planes of [rows, STRATA_STREAMS, 2 * STRATA_WIDTH]. Macros: STRATA_TYPE (of the table), STRATA_WIDTH
// (values of a stream), STRATA_STREAMS. Grid: (a stream each, then one for the embedding, which goes to all streams; rows). A thread holds
// four neighbouring values.
#include "ahead.cuh"
#include "embed.cuh"
#include "quantize.cuh"
#include "step.cuh"

using namespace strata;

namespace {
constexpr int kWidth = STRATA_WIDTH, kStreams = STRATA_STREAMS, kThreads = kWidth / 4;
static_assert(kWidth % 128 == 0 && kThreads <= 1024);
}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) draft_join(const int* live, const int* tokens, const uint8_t* table, const float* token_norm,
                                                                  const float* hidden, const float* hidden_norm, int8_t* q, float* d,
                                                                  int16_t* sums, uint32_t* faults, int vocab, float token_eps, float hidden_eps,
                                                                  const uint8_t* ahead, uint32_t ahead_bytes) {
  constexpr QuantType T = STRATA_TYPE;
  __shared__ __align__(16) float x[kWidth];
  __shared__ float inverse;
  const int row = blockIdx.y, stream = blockIdx.x, own = 4 * threadIdx.x;
  const bool embedding = stream == kStreams;
  const float4 w = __ldg(reinterpret_cast<const float4*>((embedding ? token_norm : hidden_norm + stream * kWidth) + own));
  ask_ahead(ahead, ahead_bytes);
  dependency_wait();
  dependency_launch();
  if (row >= *live) return;
  if (embedding) {
    const int token = tokens[row];
    if (token < 0 || token >= vocab) {
      if (threadIdx.x == 0) report(faults, kFaultRange);
      return;
    }
    constexpr size_t row_bytes = static_cast<size_t>(kWidth / Layout<T>::values) * Layout<T>::bytes;
    for (int i = threadIdx.x; i < kWidth / kEmbedEach<T>; i += kThreads) embedded<T>(table + token * row_bytes, i, x);
  } else {
    const float* from = hidden + (static_cast<size_t>(row) * kStreams + stream) * kWidth;
    *reinterpret_cast<float4*>(x + own) = *reinterpret_cast<const float4*>(from + own);
  }
  __syncthreads();
  if (warp_id() == 0) {
    const float mean = div32(square_sum(x, kWidth), static_cast<float>(kWidth));
    if (lane_id() == 0) inverse = div32(1.0f, sqrt32(mean + (embedding ? token_eps : hidden_eps)));
  }
  __syncthreads();
  const float scale = inverse;
  float4 v = *reinterpret_cast<const float4*>(x + own);
  v = {(v.x * scale) * w.x, (v.y * scale) * w.y, (v.z * scale) * w.z, (v.w * scale) * w.w};
  const size_t first = static_cast<size_t>(row) * kStreams * 2 * kWidth;
  if (!embedding) return quantize_four(v, true, first + (2 * stream + 1) * kWidth + own, q, d, sums, faults);
#pragma unroll
  for (int c = 0; c < kStreams; ++c) quantize_four(v, true, first + 2 * c * kWidth + own, q, d, sums, faults);
}
