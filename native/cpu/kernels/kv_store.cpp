// kv_store: writes each row's keys and values to its cell of the pool.
// ptr: num_rows, positions int32, sequences int32, page_table int32 [seqs, pages_per_seq], k float [rows, kv_heads,
// head_dim], v, k_pool, v_pool; dim: kv_heads, head_dim, pages_per_seq, kv_type, num_pages.
#include "cpu/kernels/kv.h"

namespace strata::STRATA_LEVEL {

// False when a value is not finite as a half: a score of minus infinity would hide it from later checks.
STRATA_HD bool store_cell(const float* __restrict x, int64_t n, int64_t kv_type, uint64_t pool, int64_t at) {
  if (kv_type != kKvF16) {
    memcpy(reinterpret_cast<float*>(pool) + at, x, static_cast<size_t>(n) * sizeof(float));
    return true;
  }
  uint16_t* __restrict out = reinterpret_cast<uint16_t*>(pool) + at;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = float_half(x[i]);
    finite &= (out[i] & 0x7c00u) != 0x7c00u;
  }
  return finite;
}

void kv_store(const Op& op, int thread, int threads) {
  const int64_t kv_heads = op.dim[0], head_dim = op.dim[1], kv_type = op.dim[3];
  const Range units = part(live_rows(op, 0) * kv_heads, 1, thread, threads);
  for (int64_t u = units.begin; u < units.end; ++u) {
    const int64_t row = u / kv_heads, position = op.at<const int32_t>(1)[row];
    const int64_t page = position < 0 ? -1
                                      : page_id(op.at<const int32_t>(3), op.dim[2], op.dim[4],
                                                op.at<const int32_t>(2)[row], position / kPageCells);
    if (page < 0) {
      op.fault(kFaultRange);
      continue;
    }
    const int64_t at = page_offset(page, kv_heads, u % kv_heads, head_dim) + position % kPageCells * head_dim;
    const bool keys_finite = store_cell(op.at<const float>(4) + u * head_dim, head_dim, kv_type, op.ptr[6], at);
    const bool values_finite = store_cell(op.at<const float>(5) + u * head_dim, head_dim, kv_type, op.ptr[7], at);
    if (!keys_finite || !values_finite) op.fault(kFaultNonFinite);
  }
}

}  // namespace strata::STRATA_LEVEL
