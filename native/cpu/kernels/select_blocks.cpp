// block_scores: score of each complete block for rows that have more than `budget`: sum over heads, in order, of
// max(q_h . key, 0).
// ptr: num_rows, positions int32, sequences int32, page_table int32, q [rows, heads, dim], pooled [pages, 64 / ratio,
// dim], out [rows, stride]; dim: heads, dim, ratio, budget, stride, pages_per_seq, num_pages.
// select_blocks: the `budget` best blocks in ascending order; all of them where they fit.
// ptr: num_rows, positions, scores [rows, stride], out int32 [rows, budget]; dim: budget, ratio, stride.
// rank_blocks: both for many rows, a row's scores lying in its thread's memory; block_scores shares one row's blocks.
// ptr, dim: as block_scores, out being int32 [rows, budget] and stride the most blocks of a row.
#include "cpu/kernels/groups.h"
#include "cpu/kernels/kv.h"
#include "cpu/kernels/split_buffer.h"

namespace strata::STRATA_LEVEL {

static void score_blocks(const Op& op, int64_t row, int64_t begin, int64_t end, float* out) {
  const int64_t heads = op.dim[0], dim = op.dim[1], per_page = kPageCells / op.dim[2];
  const float* q = op.at<const float>(4) + row * heads * dim;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t page =
        page_id(op.at<const int32_t>(3), op.dim[5], op.dim[6], op.at<const int32_t>(2)[row], block / per_page);
    if (page < 0) return op.fault(kFaultRange);
    const float* key = op.at<const float>(5) + (page * per_page + block % per_page) * dim;
    float total = 0.0f;
    for (int64_t h = 0; h < heads; ++h) {
      const float score = lane_dot(key, q + h * dim, dim);
      total += score > 0.0f ? score : 0.0f;
    }
    out[block] = total;
  }
}

void block_scores(const Op& op, int thread, int threads) {
  const int64_t live = live_rows(op, 0);
  for (int64_t row = 0; row < live; ++row) {
    const int64_t blocks = (op.at<const int32_t>(1)[row] + int64_t{1}) / op.dim[2];
    if (blocks <= op.dim[3]) continue;
    if (blocks > op.dim[4]) return op.fault(kFaultRange);
    const Range mine = part(blocks, 16, thread, threads);
    score_blocks(op, row, mine.begin, mine.end, op.at<float>(6) + row * op.dim[4]);
  }
}

// The key that exactly `keep` of the n keys reach: bytes from the top, each time those that share what is known so far.
static uint64_t threshold(const float* scores, int64_t n, int64_t keep) {
  uint64_t known = 0, mask = 0;
  for (int shift = 56; shift >= 0; shift -= 8) {
    int64_t counts[256] = {};
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t key = topk_key(scores[i], static_cast<uint32_t>(i));
      if ((key & mask) == known) ++counts[key >> shift & 255u];
    }
    int byte = 255;
    for (; counts[byte] < keep; --byte) keep -= counts[byte];
    known |= static_cast<uint64_t>(byte) << shift;
    mask |= uint64_t{255} << shift;
  }
  return known;
}

static void choose(const float* scores, int64_t blocks, int64_t budget, int32_t* out) {
  const uint64_t least = blocks > budget ? threshold(scores, blocks, budget) : 0;
  for (int64_t i = 0, n = 0; i < blocks; ++i)
    if (blocks <= budget || topk_key(scores[i], static_cast<uint32_t>(i)) >= least) out[n++] = static_cast<int32_t>(i);
}

void select_blocks(const Op& op, int thread, int threads) {
  const int64_t budget = op.dim[0];
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t blocks = (op.at<const int32_t>(1)[row] + int64_t{1}) / op.dim[1];
    if (blocks > op.dim[2]) return op.fault(kFaultRange);
    choose(op.at<const float>(2) + row * op.dim[2], blocks, budget, op.at<int32_t>(3) + row * budget);
  }
}

static thread_local SplitBuffer rank_buffer;

void rank_blocks(const Op& op, int thread, int threads) {
  const int64_t budget = op.dim[3];
  const Range rows = part(live_rows(op, 0), 1, thread, threads);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t blocks = (op.at<const int32_t>(1)[row] + int64_t{1}) / op.dim[2];
    if (blocks > op.dim[4]) return op.fault(kFaultRange);
    if (!rank_buffer.reserve(blocks)) return op.fault(kFaultMemory);
    if (blocks > budget) score_blocks(op, row, 0, blocks, rank_buffer.data);
    choose(rank_buffer.data, blocks, budget, op.at<int32_t>(6) + row * budget);
  }
}

}  // namespace strata::STRATA_LEVEL
