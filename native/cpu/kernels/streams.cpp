// Hyper-connections over rows of `streams` streams of `width` values.
// stream_tile: ptr num_rows, x [rows, width], out; dim width, streams.
// scaled_silu: ptr num_rows, x, out; dim width, divisor: out = silu(x / divisor).
// stream_mix: ptr num_rows, x, gate, out [rows, width]; dim width, streams: mean over streams of sigmoid(gate) x.
// stream_write: ptr num_rows, residual, y [rows, width], inject [rows, streams], out; dim width, streams.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

static constexpr int64_t kTile = 256;  // values of a row that a thread takes together

// Calls f(row, begin, end) for this thread's tiles of rows of `width` values.
template <class F>
STRATA_HD void each_tile(const Op& op, int64_t width, int thread, int threads, F f) {
  const int64_t tiles = (width + kTile - 1) / kTile;
  const Range units = part(live_rows(op, 0) * tiles, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t begin = u % tiles * kTile;
    f(u / tiles, begin, begin + kTile < width ? begin + kTile : width);
  }
}

void stream_tile(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0], streams = op.dim[1];
  each_tile(op, width, thread, threads, [&](int64_t row, int64_t begin, int64_t end) {
    const float* x = op.at<const float>(1) + row * width;
    float* out = op.at<float>(2) + row * streams * width;
    for (int64_t c = 0; c < streams; ++c)
      memcpy(out + c * width + begin, x + begin, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

void scaled_silu(const Op& op, int thread, int threads) {
  const float divisor = static_cast<float>(op.dim[1]);
  each_tile(op, op.dim[0], thread, threads, [&](int64_t row, int64_t begin, int64_t end) {
    const float* x = op.at<const float>(1) + row * op.dim[0];
    float* out = op.at<float>(2) + row * op.dim[0];
    for (int64_t i = begin; i < end; ++i) out[i] = silu32(div32(x[i], divisor));
  });
}

void stream_mix(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0], streams = op.dim[1];
  each_tile(op, width, thread, threads, [&](int64_t row, int64_t begin, int64_t end) {
    alignas(64) float total[kTile] = {};
    for (int64_t c = 0; c < streams; ++c) {
      const float* x = op.at<const float>(1) + (row * streams + c) * width + begin;
      const float* gate = op.at<const float>(2) + (row * streams + c) * width + begin;
      for (int64_t i = 0; i < end - begin; ++i) total[i] = fma32(sigmoid32(gate[i]), x[i], total[i]);
    }
    float* out = op.at<float>(3) + row * width + begin;
    for (int64_t i = 0; i < end - begin; ++i) out[i] = div32(total[i], static_cast<float>(streams));
  });
}

void stream_write(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0], streams = op.dim[1];
  each_tile(op, width, thread, threads, [&](int64_t row, int64_t begin, int64_t end) {
    const float* y = op.at<const float>(2) + row * width;
    const float* inject = op.at<const float>(3) + row * streams;
    for (int64_t c = 0; c < streams; ++c) {
      const float weight = 2.0f * sigmoid32(div32(inject[c], static_cast<float>(streams)));
      const float* residual = op.at<const float>(1) + (row * streams + c) * width;
      float* out = op.at<float>(4) + (row * streams + c) * width;
      for (int64_t i = begin; i < end; ++i) out[i] = fma32(weight, y[i], residual[i]);
    }
  });
}

}  // namespace strata::STRATA_LEVEL
