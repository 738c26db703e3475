// sparse_attention: attention over selected blocks in ascending order and the cells after the last complete block. A
// row's cells are a list; splits of 256 are by index in it (contract.h).
// ptr: num_rows, positions int32, sequences int32, page_table int32, q [rows, heads, head_dim], selected int32 [rows,
// budget], k_pool, v_pool, k_scales, v_scales (0 unless quantised), out [rows, heads, head_dim]; then, where groups of
// cells may be resident apart, k_slots, v_slots, k_slot_scales, v_slot_scales [slots, kv_heads, ratio, head_dim] and table
// int32 [pages, 64 / ratio] of slot + 1, else 0.
// dim: heads, kv_heads, head_dim (at most 512), pages_per_seq, k_type, v_type, num_pages, ratio, budget; scalar: scale.
#include "cpu/kernels/kv.h"
#include "cpu/kernels/softmax.h"
#include "cpu/kernels/split_buffer.h"

namespace strata::STRATA_LEVEL {

static constexpr int kMaxHeads = 16, kMaxHeadDim = 512, kManyHeads = 3;

struct SparseScratch {
  alignas(64) float scores[kMaxHeads][kAttentionSplit];
  alignas(64) float keys[kRowValues * kMaxHeadDim];
  alignas(64) float transposed[kMaxHeadDim * kRowValues];
  alignas(64) float values[kAttentionSplit * kRowValues];
  int64_t cells[kAttentionSplit];  // first value of each cell of the split in the pools; ~ that in the slots
};

static thread_local SplitBuffer sparse_buffer;
static thread_local SparseScratch sparse_scratch;

struct SparseAttention {
  const Op& op;
  const int64_t heads = op.dim[0], kv_heads = op.dim[1], head_dim = op.dim[2], ratio = op.dim[7];

  int64_t selected_cells(int64_t row) const {
    const int64_t blocks = (op.at<const int32_t>(1)[row] + int64_t{1}) / ratio;
    return (blocks < op.dim[8] ? blocks : op.dim[8]) * ratio;
  }
  int64_t total_cells(int64_t row) const {
    return selected_cells(row) + (op.at<const int32_t>(1)[row] + int64_t{1}) % ratio;
  }
  // Position of entry i of the row's list of cells.
  int64_t cell(int64_t row, int64_t i) const {
    const int64_t kept = selected_cells(row);
    if (i < kept) return op.at<const int32_t>(5)[row * op.dim[8] + i / ratio] * ratio + i % ratio;
    return (op.at<const int32_t>(1)[row] + int64_t{1}) / ratio * ratio + (i - kept);
  }

  bool find_cells(int64_t row, int64_t kv_head, int64_t first, int64_t count, SparseScratch& s) const {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t c = cell(row, first + i);
      const int64_t page =
          c < 0 ? -1 : page_id(op.at<const int32_t>(3), op.dim[3], op.dim[6], op.at<const int32_t>(2)[row], c / kPageCells);
      if (page < 0) return false;
      s.cells[i] = page_offset(page, kv_heads, kv_head, head_dim) + c % kPageCells * head_dim;
      if (op.ptr[15] == 0) continue;
      const int64_t slot = op.at<const int32_t>(15)[page * (kPageCells / ratio) + c % kPageCells / ratio] - int64_t{1};
      if (slot >= 0) s.cells[i] = ~(((slot * kv_heads + kv_head) * ratio + c % ratio) * head_dim);
    }
    return true;
  }

  // `n` values from d on of a cell, of keys (plane 0) or values (1).
  void load(int plane, int64_t cell, int64_t d, int64_t n, float* to) const {
    const bool slot = cell < 0;
    load_values(op.dim[4 + plane], op.ptr[(slot ? 11 : 6) + plane], op.ptr[(slot ? 13 : 8) + plane],
                (slot ? ~cell : cell) + d, n, head_dim, to);
  }

  // Scores of cells [first, first + 64) of the split; those after its last are of the last cell, and not used.
  void score(int64_t row, int64_t head, int64_t count, int64_t first, int64_t cells, SparseScratch& s) const {
    for (int64_t c = 0; c < kRowValues; ++c)
      load(0, s.cells[first + c < cells ? first + c : cells - 1], 0, head_dim, s.keys + c * head_dim);
    if (count >= kManyHeads)
      for (int64_t c = 0; c < kRowValues; ++c)
        for (int64_t i = 0; i < head_dim; ++i) s.transposed[i * kRowValues + c] = s.keys[c * head_dim + i];
    for (int64_t h = 0; h < count; ++h) {
      const float* q = op.at<const float>(4) + (row * heads + head + h) * head_dim;
      float* scores = s.scores[h] + first;
      if (count >= kManyHeads)
        lanes_of_rows(q, s.transposed, 0, head_dim, scores);
      else
        for (int64_t c = 0; c < kRowValues; ++c) {
          alignas(64) float acc[kLanes] = {};
          lanes_fma(q, s.keys + c * head_dim, head_dim, acc);
          scores[c] = tree_sum(acc);
        }
      for (int64_t c = 0; c < kRowValues; ++c) scores[c] *= op.scalar[0];
    }
  }

  void sum(int64_t count, int64_t cells, int64_t splits, int64_t split, float* sums, SparseScratch& s) const {
    for (int64_t d = 0; d < head_dim; d += kRowValues) {
      const int64_t width = head_dim - d < kRowValues ? head_dim - d : kRowValues;
      for (int64_t c = 0; c < cells; ++c)
        load(1, s.cells[c], d, width, s.values + c * kRowValues);
      for (int64_t h = 0; h < count; ++h) {
        alignas(64) float out[kRowValues];
        lanes_of_rows(s.scores[h], s.values, 0, cells, out);
        memcpy(sums + (h * splits + split) * head_dim + d, out, static_cast<size_t>(width) * sizeof(float));
      }
    }
  }

  // Heads [head, head + count) of a row, all of one key head.
  Fault run(int64_t row, int64_t head, int64_t count, SparseScratch& s) const {
    const int64_t total = total_cells(row), splits = (total + kAttentionSplit - 1) / kAttentionSplit;
    if (!sparse_buffer.reserve(count * splits * (head_dim + 2))) return kFaultMemory;
    float* sums = sparse_buffer.data;
    SplitSoftmax* softmax = reinterpret_cast<SplitSoftmax*>(sums + count * splits * head_dim);
    for (int64_t split = 0; split < splits; ++split) {
      const int64_t first = split * kAttentionSplit;
      const int64_t cells = total - first < kAttentionSplit ? total - first : kAttentionSplit;
      if (!find_cells(row, head / (heads / kv_heads), first, cells, s)) return kFaultRange;
      for (int64_t c = 0; c < cells; c += kRowValues) score(row, head, count, c, cells, s);
      for (int64_t h = 0; h < count; ++h) softmax[h * splits + split] = split_softmax(s.scores[h], 0, cells);
      sum(count, cells, splits, split, sums, s);
    }
    for (int64_t h = 0; h < count; ++h)
      join_splits(softmax + h * splits, sums + h * splits * head_dim, splits, head_dim, head_dim,
                  op.at<float>(10) + (row * heads + head + h) * head_dim);
    return kFaultNone;
  }
};

void sparse_attention(const Op& op, int thread, int threads) {
  const SparseAttention a{op};
  const int64_t live = live_rows(op, 0), group = a.heads / a.kv_heads;
  if (a.head_dim > kMaxHeadDim) return op.fault(kFaultRange);
  // Heads of a unit share every load of their cells, as long as each thread has two units.
  const int64_t most = group < kMaxHeads ? group : kMaxHeads, fair = live * a.heads / (2 * threads);
  const int64_t together = fair < 1 ? 1 : fair < most ? fair : most;
  int64_t turn = 0;
  for (int64_t row = 0; row < live; ++row) {
    if (op.at<const int32_t>(1)[row] < 0) {
      op.fault(kFaultRange);
      continue;
    }
    for (int64_t head = 0, count; head < a.heads; head += count) {
      const int64_t in_group = group - head % group;
      count = in_group < together ? in_group : together;
      if (turn++ % threads == thread) op.fault(a.run(row, head, count, sparse_scratch));
    }
  }
}

}  // namespace strata::STRATA_LEVEL
