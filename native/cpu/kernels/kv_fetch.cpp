// kv_fetch: brings the groups of cells that rows have selected, and their incomplete ones, into slots.
// ptr: num_rows, positions int32, sequences int32, page_table int32, selected int32 [rows, budget], k_pool, v_pool,
// k_scales, v_scales, k_slots, v_slots, k_slot_scales, v_slot_scales, table int32 [pages, 64 / ratio] of slot + 1, clock
// int32 [4 + 3 slots] (hand, step; owners, last uses, references), counts uint64 [4].
// dim: kv_heads, head_dim, pages_per_seq, k_type, v_type, num_pages, ratio, budget, slots; scalar: ns a byte of the link.
#include <chrono>

#include "cpu/kernels/kv.h"

namespace strata::STRATA_LEVEL {

namespace {

enum Count { kHits, kFetches, kStreamed, kFetchBytes };

struct Fetch {
  const Op& op;
  const int64_t kv_heads = op.dim[0], head_dim = op.dim[1], ratio = op.dim[6], slots = op.dim[8];
  const int64_t per_page = kPageCells / ratio, group_values = ratio * head_dim;
  int32_t *table = op.at<int32_t>(13), *clock = op.at<int32_t>(14);
  int32_t *owner = clock + 4, *used = owner + slots, *referenced = used + slots;
  uint64_t* counts = op.at<uint64_t>(15);

  // Bytes of `values` values of a plane, and of their scales.
  static int64_t plane_bytes(int64_t type, int64_t values) {
    return type == kKvF32 ? values * 4 : type == kKvF16 ? values * 2 : type == kKvNibbles ? values / 2 : values;
  }
  int64_t scale_bytes(int64_t type, int64_t values) const {
    return type == kKvInt8 || type == kKvNibbles ? values / kv_group(head_dim) * 2 : 0;
  }

  // Group of a sequence's cell: page * per_page + place, -1 where there is no such page.
  int64_t group_of(int64_t row, int64_t cell) const {
    const int64_t page = page_id(op.at<const int32_t>(3), op.dim[2], op.dim[5], op.at<const int32_t>(2)[row], cell / kPageCells);
    return page < 0 ? -1 : page * per_page + cell % kPageCells / ratio;
  }

  void copy(int64_t group, int64_t slot) {
    for (int plane = 0; plane < 2; ++plane) {
      const int64_t type = op.dim[3 + plane];
      for (int64_t h = 0; h < kv_heads; ++h) {
        const int64_t from = page_offset(group / per_page, kv_heads, h, head_dim) + group % per_page * group_values;
        const int64_t to = (slot * kv_heads + h) * group_values;
        memcpy(op.at<char>(9 + plane) + plane_bytes(type, to), op.at<const char>(5 + plane) + plane_bytes(type, from),
               static_cast<size_t>(plane_bytes(type, group_values)));
        if (scale_bytes(type, group_values) > 0)
          memcpy(op.at<char>(11 + plane) + scale_bytes(type, to), op.at<const char>(7 + plane) + scale_bytes(type, from),
                 static_cast<size_t>(scale_bytes(type, group_values)));
      }
    }
  }

  int64_t bytes() const {
    int64_t total = 0;
    for (int plane = 0; plane < 2; ++plane)
      total += plane_bytes(op.dim[3 + plane], group_values) + scale_bytes(op.dim[3 + plane], group_values);
    return total * kv_heads;
  }

  // A slot that this step does not use, by second chance; -1 where there is none.
  int64_t find_slot() {
    for (int64_t turn = 0; turn < 2 * slots; ++turn) {
      const int64_t slot = clock[0];
      clock[0] = slot + 1 < slots ? static_cast<int32_t>(slot + 1) : 0;
      if (owner[slot] == 0) return slot;
      if (used[slot] == clock[1]) continue;
      if (referenced[slot] == 0) return slot;
      referenced[slot] = 0;
    }
    return -1;
  }

  bool full = false;  // every slot is this step's

  void want(int64_t group) {
    int64_t slot = table[group] - 1;
    if (slot >= 0) {
      ++counts[kHits];
      referenced[slot] = 1;
    } else {
      slot = full ? -1 : find_slot();
      if (slot < 0) {
        full = true;
        ++counts[kStreamed];
        return;
      }
      if (owner[slot] != 0) table[owner[slot] - 1] = 0;
      owner[slot] = static_cast<int32_t>(group + 1);
      table[group] = static_cast<int32_t>(slot + 1);
      copy(group, slot);
      ++counts[kFetches];
      counts[kFetchBytes] += static_cast<uint64_t>(bytes());
      referenced[slot] = 0;  // a second chance is for what is used again
    }
    used[slot] = clock[1];
  }

  void row(int64_t r) {
    const int64_t position = op.at<const int32_t>(1)[r], blocks = (position + 1) / ratio, budget = op.dim[7];
    const int64_t kept = blocks < budget ? blocks : budget;
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t block = op.at<const int32_t>(4)[r * budget + i];
      const int64_t group = block < 0 ? -1 : group_of(r, block * ratio);
      if (group < 0) return op.fault(kFaultRange);
      want(group);
    }
    if ((position + 1) % ratio == 0) return;
    const int64_t tail = group_of(r, position);
    if (tail < 0) return op.fault(kFaultRange);
    want(tail);
  }

  // What kv_store has just written reaches the group's slot too.
  void refresh(int64_t r) {
    const int64_t position = op.at<const int32_t>(1)[r], group = position < 0 ? -1 : group_of(r, position);
    if (group < 0) return op.fault(kFaultRange);
    if (table[group] > 0) copy(group, table[group] - 1);
  }
};

}  // namespace

void kv_fetch(const Op& op, int thread, int) {
  if (thread != 0) return;
  Fetch f{op};
  const auto start = std::chrono::steady_clock::now();
  const uint64_t before = f.counts[kFetchBytes];
  f.clock[1] = f.clock[1] == INT32_MAX ? 1 : f.clock[1] + 1;
  const int64_t live = live_rows(op, 0);
  for (int64_t r = 0; r < live; ++r) f.refresh(r);
  for (int64_t r = 0; r < live; ++r)
    if (op.at<const int32_t>(1)[r] >= 0) f.row(r);
  const double wait = static_cast<double>(f.counts[kFetchBytes] - before) * static_cast<double>(op.scalar[0]);
  while (std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() < wait) {
  }
}

}  // namespace strata::STRATA_LEVEL
