// combine: out[r] = sum of weights[r, i] * expert_rows[r * k + i], by fma in rank order from +0.
// ptr: num_rows, expert_rows [rows * k, width], topk_weights [rows, k], out [rows, width]; dim: width, k.
// gated_add: out[r] = fma(sigmoid(gate[r]), y[r], x[r]). ptr: num_rows, x, y, gate [rows], out; dim: width.
#include "cpu/kernels/kernel.h"

namespace strata::STRATA_LEVEL {

static constexpr int64_t kPiece = 256;  // values of a row that one thread takes

// Calls piece(row, begin, end) for this thread's pieces of the rows.
template <class F>
STRATA_HD void for_pieces(int64_t rows, int64_t width, int thread, int threads, F&& piece) {
  const int64_t pieces = (width + kPiece - 1) / kPiece;
  const Range range = part(rows * pieces, 1, thread, threads);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t begin = i % pieces * kPiece;
    piece(i / pieces, begin, width - begin < kPiece ? width : begin + kPiece);
  }
}

void combine(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0], k = op.dim[1];
  for_pieces(live_rows(op, 0), width, thread, threads, [&](int64_t r, int64_t begin, int64_t end) {
    float* __restrict out = op.at<float>(3) + r * width;
    for (int64_t i = begin; i < end; ++i) out[i] = 0.0f;
    for (int64_t rank = 0; rank < k; ++rank) {
      const float weight = op.at<const float>(2)[r * k + rank];
      const float* __restrict y = op.at<const float>(1) + (r * k + rank) * width;
      for (int64_t i = begin; i < end; ++i) out[i] = combine_step(weight, y[i], out[i]);
    }
  });
}

void gated_add(const Op& op, int thread, int threads) {
  const int64_t width = op.dim[0];
  for_pieces(live_rows(op, 0), width, thread, threads, [&](int64_t r, int64_t begin, int64_t end) {
    const float gate = sigmoid32(op.at<const float>(3)[r]);
    const float *x = op.at<const float>(1) + r * width, *y = op.at<const float>(2) + r * width;
    float* out = op.at<float>(4) + r * width;
    for (int64_t i = begin; i < end; ++i) out[i] = fma32(gate, y[i], x[i]);
  });
}

}  // namespace strata::STRATA_LEVEL
