// embed: out[r] = the float values of row tokens[r] of the token table.
// ptr: tokens int32, num_rows, weight [vocab, hidden] as in the file, out; dim: type_id, hidden, vocab.
#include "cpu/kernels/kernel.h"
#include "strata/quants.h"

namespace strata::STRATA_LEVEL {

template <QuantType T>
static void embed_rows(const Op& op, int thread, int threads) {
  using F = Format<T>;
  const int64_t blocks = op.dim[1] / F::values;
  const Range units = part(live_rows(op, 1) * blocks, 64, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t token = op.at<const int32_t>(0)[u / blocks];
    if (token < 0 || token >= op.dim[2]) {
      op.fault(kFaultRange);
      continue;
    }
    dequantize_block<T>(op.at<const uint8_t>(2) + (token * blocks + u % blocks) * F::bytes,
                        op.at<float>(3) + u * F::values);
  }
}

void embed(const Op& op, int thread, int threads) {
  const auto run = [&]<QuantType T>() { embed_rows<T>(op, thread, threads); };
  if (!with_format(static_cast<QuantType>(op.dim[0]), run)) op.fault(kFaultRange);
}

}  // namespace strata::STRATA_LEVEL
