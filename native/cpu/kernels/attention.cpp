// attention: causal, grouped query heads, paged KV, step form (contract.h). Scores live for one split of 256 cells;
// each split leaves its maximum, sum and value sums, which join in ascending order at the end.
// ptr: num_rows, positions int32, sequences int32, page_table int32 [seqs, pages_per_seq], q float [rows, heads,
// head_dim], k_pool, v_pool, out float [rows, heads, head_dim], k_scales, v_scales (0 unless quantised).
// dim: heads, kv_heads, head_dim (at most 512), pages_per_seq, k_type, v_type, window (0: none), num_pages; scalar: scale.
#include "cpu/kernels/kv.h"
#include "cpu/kernels/softmax.h"
#include "cpu/kernels/split_buffer.h"

namespace strata::STRATA_LEVEL {

static constexpr int kTileRows = 8, kTileHeads = 4, kTileUnits = kTileRows * kTileHeads;
static constexpr int kSplitPages = kAttentionSplit / kPageCells;
static constexpr int kMaxHeadDim = 512;
static constexpr int kManyUnits = STRATA_SIMD == 512 ? 8 : 3;  // from here on a page of keys is worth transposing
static_assert(kPageCells == kRowValues && kTileHeads <= kRowsUnits);
static constexpr int64_t kSplitFloats = 128 << 10;  // of all splits of a tile: half an L2 cache; more only for one unit

// Rows of one sequence at consecutive positions, and query heads of one KV head: they share every K and V load. A row
// and head of it is a unit.
struct Tile {
  int64_t row, rows, head, heads, kv_head;
};

struct Cells {
  int64_t begin, end;
};

static thread_local SplitBuffer split_buffer;

struct Scratch {
  alignas(64) float scores[kTileUnits][kAttentionSplit];
  alignas(64) float keys[kPageCells * kMaxHeadDim];
  alignas(64) float transposed[kMaxHeadDim * kPageCells];
  alignas(64) float values[kAttentionSplit * kRowValues];
  int64_t pages[kSplitPages];
  SplitSoftmax* softmax;  // [units, splits]
  float* sums;            // [units, splits, head_dim]
};

struct Attention {
  const Op& op;
  const int64_t heads = op.dim[0], kv_heads = op.dim[1], head_dim = op.dim[2], k_type = op.dim[4], window = op.dim[6];
  const int32_t *positions = op.at<const int32_t>(1), *sequences = op.at<const int32_t>(2);

  int64_t first_cell(int64_t row) const {
    const int64_t first = window > 0 ? positions[row] - window + 1 : 0;
    return first > 0 ? first : 0;
  }
  int64_t first_split(int64_t row) const { return first_cell(row) / kAttentionSplit; }
  int64_t splits(int64_t row, int64_t rows) const {
    return positions[row + rows - 1] / kAttentionSplit + 1 - first_split(row);
  }

  // Cells of the split starting at `cell` that rows [row, row + rows) see, counted from `cell`; maybe none.
  Cells visible(int64_t row, int64_t rows, int64_t cell) const {
    const int64_t begin = first_cell(row) - cell, end = positions[row + rows - 1] + 1 - cell;
    return {begin > 0 ? begin : 0, end < kAttentionSplit ? end : kAttentionSplit};
  }

  // Copies as floats `width` values from d on of `cells` cells of a page to rows of `stride`.
  void load(int64_t kv_type, uint64_t pool, uint64_t scales, int64_t page, const Tile& tile, int64_t d, int64_t width, int64_t cells,
            float* to, int64_t stride) const {
    const int64_t at = page_offset(page, kv_heads, tile.kv_head, head_dim) + d;
    for (int64_t c = 0; c < cells; ++c)
      load_values(kv_type, pool, scales, at + c * head_dim, width, head_dim, to + c * stride);
  }

  const float* query(const Tile& tile, int64_t unit) const {
    return op.at<const float>(4) + ((tile.row + unit / tile.heads) * heads + tile.head + unit % tile.heads) * head_dim;
  }

  // Keys of a page as floats [64, head_dim]: the pool itself, or a copy.
  const float* page_keys(const Tile& tile, int64_t page, Scratch& s) const {
    if (k_type == kKvF32) return op.at<const float>(5) + page_offset(page, kv_heads, tile.kv_head, head_dim);
    load(k_type, op.ptr[5], op.ptr[8], page, tile, 0, head_dim, kPageCells, s.keys, head_dim);
    return s.keys;
  }

  // Scores of the page's 64 cells for every unit, those that a unit does not see included.
  void score_page(const Tile& tile, int64_t p, Scratch& s) const {
    const float* keys = page_keys(tile, s.pages[p], s);
    const int64_t units = tile.rows * tile.heads;
    if (units >= kManyUnits) transpose_rows(keys, head_dim, s.transposed);
    for (int64_t unit = 0, count; unit < units; unit += count) {  // heads of one row: their queries lie side by side
      count = units >= kManyUnits ? tile.heads : 1;
      const float* q = query(tile, unit);
      float* scores = s.scores[unit] + p * kPageCells;
      if (units >= kManyUnits)
        lanes_of_rows(q, head_dim, count, s.transposed, 0, head_dim, scores, kAttentionSplit);
      else
        row_dots(q, keys, head_dim, kPageCells, scores);
      for (int64_t u = 0; u < count; ++u)
        for (int64_t c = 0; c < kPageCells; ++c) scores[u * kAttentionSplit + c] *= op.scalar[0];
    }
  }

  void sum_split(const Tile& tile, int64_t split, int64_t splits, Cells cells, int64_t cell, Scratch& s) const {
    for (int64_t d = 0; d < head_dim; d += kRowValues) {
      const int64_t width = head_dim - d < kRowValues ? head_dim - d : kRowValues;
      for (int64_t p = cells.begin / kPageCells, c; (c = p * kPageCells) < cells.end; ++p)
        load(op.dim[5], op.ptr[6], op.ptr[9], s.pages[p], tile, d, width, cells.end - c < kPageCells ? cells.end - c : kPageCells,
             s.values + c * kRowValues, kRowValues);
      for (int64_t unit = 0; unit < tile.rows * tile.heads; unit += tile.heads) {
        const Cells seen = visible(tile.row + unit / tile.heads, 1, cell);
        if (seen.begin >= seen.end) continue;
        alignas(64) float sums[kTileHeads][kRowValues];
        lanes_of_rows(s.scores[unit], kAttentionSplit, tile.heads, s.values, seen.begin, seen.end, sums[0], kRowValues);
        for (int64_t h = 0; h < tile.heads; ++h)
          memcpy(s.sums + ((unit + h) * splits + split) * head_dim + d, sums[h],
                 static_cast<size_t>(width) * sizeof(float));
      }
    }
  }

  // Split number `split` of the tile's `splits`; false when a page is out of range.
  bool run_split(const Tile& tile, int64_t split, int64_t splits, Scratch& s) const {
    const int64_t cell = (first_split(tile.row) + split) * kAttentionSplit;
    const Cells cells = visible(tile.row, tile.rows, cell);
    for (int64_t p = cells.begin / kPageCells; p * kPageCells < cells.end; ++p) {
      s.pages[p] = page_id(op.at<const int32_t>(3), op.dim[3], op.dim[7], sequences[tile.row], cell / kPageCells + p);
      if (s.pages[p] < 0) return false;
      score_page(tile, p, s);
    }
    for (int64_t unit = 0; unit < tile.rows * tile.heads; ++unit) {
      const Cells seen = visible(tile.row + unit / tile.heads, 1, cell);
      s.softmax[unit * splits + split] = seen.begin < seen.end ? split_softmax(s.scores[unit], seen.begin, seen.end)
                                                               : SplitSoftmax{kNoScore, 0.0f};
    }
    sum_split(tile, split, splits, cells, cell, s);
    return true;
  }

  Fault run(const Tile& tile, Scratch& s) const {
    const int64_t n = splits(tile.row, tile.rows), units = tile.rows * tile.heads;
    if (!split_buffer.reserve(units * n * (head_dim + 2))) return kFaultMemory;
    s.sums = split_buffer.data;
    s.softmax = reinterpret_cast<SplitSoftmax*>(s.sums + units * n * head_dim);
    for (int64_t split = 0; split < n; ++split)
      if (!run_split(tile, split, n, s)) return kFaultRange;
    for (int64_t unit = 0; unit < units; ++unit) {
      const int64_t row = tile.row + unit / tile.heads, head = tile.head + unit % tile.heads;
      join_splits(s.softmax + unit * n, s.sums + unit * n * head_dim, n, head_dim, head_dim,
                  op.at<float>(7) + (row * heads + head) * head_dim);
    }
    return kFaultNone;
  }

  // Rows from `row` on that make one tile of `count` heads.
  int64_t tile_rows(int64_t row, int64_t live, int64_t count) const {
    const int64_t unit_floats = splits(row, 1) * (head_dim + 2) * count;
    int64_t n = 1;
    while (n < kTileRows && (n + 1) * unit_floats <= kSplitFloats && row + n < live &&
           sequences[row + n] == sequences[row] && positions[row + n] == positions[row] + n)
      ++n;
    return n;
  }
};

void attention(const Op& op, int thread, int threads) {
  const Attention a{op};
  const int64_t live = live_rows(op, 0), group = a.heads / a.kv_heads;
  if (a.head_dim > kMaxHeadDim) return op.fault(kFaultRange);
  // Few rows: a head each, where otherwise a thread would have half as much again as another.
  const int64_t shared = live * a.kv_heads, busiest = (shared + threads - 1) / threads;
  const int64_t together = 2 * busiest * threads > 3 * shared ? 1 : group < kTileHeads ? group : kTileHeads;
  Scratch scratch;
  int64_t turn = 0;
  for (int64_t row = 0, rows; row < live; row += rows) {
    rows = 1;
    if (a.positions[row] < 0) {
      op.fault(kFaultRange);
      continue;
    }
    rows = a.tile_rows(row, live, together);
    for (int64_t head = 0, count; head < a.heads; head += count) {
      const int64_t in_group = group - head % group;
      count = in_group < together ? in_group : together;
      if (turn++ % threads == thread) op.fault(a.run({row, rows, head, count, head / group}, scratch));
    }
  }
}

}  // namespace strata::STRATA_LEVEL
