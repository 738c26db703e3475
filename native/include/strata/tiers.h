// The protocol of the memory tiers: one text for whoever computes a step (a GPU, or the thread that plays one), the CPU
// workers and the host's policy. Plain memory and raw pointers; GCC and NVRTC compile it.
//
// Memory order. A flag is one 32-bit word with one writer. What belongs to it is written first, then the flag with
// release at system scope; a reader that sees the flag's value with acquire sees the rest. Flags hold sequence numbers
// that count up from 1 and never repeat, so nothing is reset and a late writer is told from a present one. Numbers that
// are only counted need no order.
#pragma once

#include "strata/contract.h"

#if !defined(__CUDACC_RTC__)
#include <sched.h>
#include <time.h>
#endif

namespace strata::tiers {

// ---- flags, waits, faults --------------------------------------------------------------------------------------

STRATA_HD uint32_t load_acquire(const uint32_t* p) {
#if defined(__CUDA_ARCH__)
  uint32_t v;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
#else
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

STRATA_HD void store_release(uint32_t* p, uint32_t v) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
#else
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
#endif
}

// Why a step is void. A fault word is only ever added to; the host clears it between steps.
enum Fault : uint32_t {
  kWaitExpired = 1,  // a worker or a copy did not answer within the limit
  kReadFailed = 2,   // the disk gave an error or less than the file should hold
  kBadEntry = 4,     // a residency entry names no resident slot: the swap protocol was broken
};

STRATA_HD void raise(uint32_t* fault, uint32_t bit) {
#if defined(__CUDA_ARCH__)
  atomicOr_system(fault, bit);
#else
  __atomic_fetch_or(fault, bit, __ATOMIC_RELAXED);
#endif
}

STRATA_HD uint64_t now_ns() {
#if defined(__CUDA_ARCH__)
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
#elif defined(__CUDACC_RTC__)
  return 0;
#else
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
#endif
}

STRATA_HD void relax(int turn) {
#if !defined(__CUDACC_RTC__) && !defined(__CUDA_ARCH__)
  if (turn > 256) sched_yield();
#else
  (void)turn;
#endif
}

// Waits until *flag, counted up by its writer, has reached `value`. False at once when the step is already void; false
// and kWaitExpired after `limit_ns`. Whoever waits goes on with whatever is there: the step's results are not used.
STRATA_HD bool wait_for(const uint32_t* flag, uint32_t value, uint64_t limit_ns, uint32_t* fault) {
  const uint64_t start = now_ns();
  for (int turn = 0; static_cast<int32_t>(load_acquire(flag) - value) < 0; ++turn) {
    if (load_acquire(fault) != 0) return false;
    if (now_ns() - start > limit_ns) {
      raise(fault, kWaitExpired);
      return false;
    }
    relax(turn);
  }
  return true;
}

// ---- residency -------------------------------------------------------------------------------------------------
//
// Identity is (layer, expert). An entry is one word [layer * num_experts + expert], read by every step: 0 is absent, else
// the slot + 1 in the low 20 bits and above them the low 12 bits of the epoch that it was published for.
//
// An epoch is one replay. `begun` counts replays started, `ended` those that are over. Entries change only between
// replays, by the host, when the next one begins (in stream order on a GPU): a replay sees one table from begin to end.
//
//   slot state   entry       who moves it on
//   free         none        the policy reserves it: promote(layer, expert, slot) -> arriving
//   arriving     none        the link copies; when the last byte is there and a replay begins, the entry is written
//                            -> resident. Called off (retire) it becomes free when the copy has stopped.
//   resident     slot        retire(layer, expert): when the next replay begins the entry is cleared and the slot is
//                            tagged with the last epoch that may read it -> leaving
//   leaving      none        `ended` has reached the tag -> free

enum SlotState : uint32_t { kFree, kArriving, kResident, kLeaving };

struct Slot {
  uint64_t address, bytes;  // fixed when planned; slots have mixed sizes
  uint32_t state, epoch;    // SlotState; epoch of the last transition
  int32_t layer, expert;    // of what it holds; -1
};

struct Epochs {
  uint32_t begun, ended;
};

constexpr uint32_t kSlotBits = 20, kSlotMask = (1u << kSlotBits) - 1;
constexpr uint32_t kMaxSlots = kSlotMask - 1;

STRATA_HD uint32_t make_entry(uint32_t slot, uint32_t epoch) { return (epoch << kSlotBits) | (slot + 1); }
// The slot of an entry, -1 when absent.
STRATA_HD int32_t entry_slot(uint32_t entry) { return static_cast<int32_t>(entry & kSlotMask) - 1; }

// ---- the miss list ---------------------------------------------------------------------------------------------

enum Place : uint32_t {
  kHit,       // resident in VRAM
  kCopied,    // through the staging ring, computed from there
  kComputed,  // by the CPU workers, where it lies in RAM
  kStaged,    // still in the staging ring from an earlier copy
};

// One distinct expert of a layer's step, in ascending order of experts.
struct ExpertUse {
  int32_t expert;
  int32_t first, count;  // its pairs (row * k + rank) in the sorted list
  uint32_t place;
  uint32_t at;  // kHit: slot; kCopied: number of the copy; kComputed: item of the mailbox
};

// Nanoseconds that a distinct miss of `bytes` with `rows` rows takes; measured on this machine with the serving kernels.
struct MissCosts {
  float link_byte;      // copy, a byte
  float cpu_byte;       // CPU workers, a byte of weights read and decoded
  float cpu_row_byte;   // and for every row that is multiplied with it
  float ram_byte;       // RAM's own rate, which both share
  float cpu_post;       // handing a list over and taking it back, once
};

// What `misses` equal experts take where so many are copied and the CPU computes the others at the same time:
// max(copies, computing, both through RAM). `rows`: that one of the others has, on average.
STRATA_HD float miss_time(int32_t misses, int32_t copied, uint64_t bytes, float rows, const MissCosts& c) {
  const float b = static_cast<float>(bytes);
  const float computed = static_cast<float>(misses - copied);
  const float link = static_cast<float>(copied) * b * c.link_byte;
  const float cpu = computed > 0.0f ? c.cpu_post + computed * b * (c.cpu_byte + rows * c.cpu_row_byte) : 0.0f;
  const float ram = static_cast<float>(misses) * b * c.ram_byte;
  const float time = link > cpu ? link : cpu;
  return ram > time ? ram : time;
}

// How many of `misses` equal experts with so many rows each to copy: the least time; ties copy. Only places depend on it,
// never bits.
STRATA_HD int32_t split_misses(int32_t misses, uint64_t bytes, float rows, const MissCosts& c) {
  int32_t best = misses;
  float least = 3.0e38f;
  for (int32_t copied = misses; copied >= 0; --copied) {
    const float time = miss_time(misses, copied, bytes, rows, c);
    if (time < least) least = time, best = copied;
  }
  return best;
}

// ---- staging ring ----------------------------------------------------------------------------------------------
//
// `slots` places of `bytes` each. Copies are numbered from 1 over the life of the ring; copy n lies in place (n - 1) %
// slots. The link writes arrived[place] = n; the reader writes `released` = n when it no longer reads copies up to n. The
// link starts copy n when released >= n - slots. On a GPU the copy kernel and the readers are nodes of one graph.

struct Staging {
  uint64_t address, bytes;
  uint32_t slots;
  uint32_t* arrived;   // [slots]
  uint32_t* released;  // one word
};

STRATA_HD uint64_t staging_place(const Staging& s, uint32_t n) { return s.address + ((n - 1) % s.slots) * s.bytes; }

// ---- mailbox of experts ----------------------------------------------------------------------------------------
//
// One mailbox in memory that device and host both see serves all layers: a layer's list is taken back before the next is
// posted. The device writes activation rows, items and the header, then `posted` = n. Workers compute each item where its
// expert lies in RAM and write one row per (row, expert), then served_items[item] = n; the last one first `served` = n, so
// that whoever has seen every item may post.
// A list is posted only when the one before it has been served (`served` == n - 1): after an expired wait nobody posts
// until the late worker is through, and misses go through the link meanwhile.

struct MailboxItem {
  int32_t expert;
  int32_t first, count;  // of pairs
  int32_t pad;
};

struct Mailbox {
  alignas(64) uint32_t posted;  // by the device
  int32_t layer, rows, items;
  alignas(64) uint32_t served;  // by the workers
  uint32_t workers;             // threads that are alive
  alignas(64) uint32_t stop;    // by the host
};

struct MailboxLimits {
  int32_t rows, k, hidden, experts;  // activation rows, experts a token, values a row, items of a list
};

// Parts behind the header. Pair p = row * k + rank of the mailbox's own rows, which are those of the step that need it.
struct MailboxView {
  Mailbox* head;
  MailboxItem* items;      // [experts]
  uint32_t* served_items;  // [experts]
  int32_t* pairs;          // [rows * k], by item
  float* x;                // [rows, hidden]; where planes are float
  int8_t* codes;           // [rows, hidden]; where planes are quantised
  float* scales;           // [rows, hidden / 32]
  int16_t* sums;           // [rows, hidden / 16]
  float* out;              // [rows * k, hidden], by pair
};

STRATA_HD uint64_t line_up(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

// Addresses of the parts from `base` on; returns the bytes that they take (base 0: only that is asked).
STRATA_HD uint64_t mailbox_view(uint64_t base, const MailboxLimits& n, MailboxView* view) {
  const uint64_t rows = static_cast<uint64_t>(n.rows), k = static_cast<uint64_t>(n.k);
  const uint64_t hidden = static_cast<uint64_t>(n.hidden), experts = static_cast<uint64_t>(n.experts);
  uint64_t at = base;
  const uint64_t sizes[9] = {sizeof(Mailbox), experts * sizeof(MailboxItem), experts * 4, rows * k * 4, rows * hidden * 4,
                             rows * hidden, rows * (hidden / 32) * 4, rows * (hidden / 16) * 2, rows * k * hidden * 4};
  uint64_t part[9];
  for (int i = 0; i < 9; ++i) part[i] = at, at += line_up(sizes[i]);
  view->head = reinterpret_cast<Mailbox*>(part[0]);
  view->items = reinterpret_cast<MailboxItem*>(part[1]);
  view->served_items = reinterpret_cast<uint32_t*>(part[2]);
  view->pairs = reinterpret_cast<int32_t*>(part[3]);
  view->x = reinterpret_cast<float*>(part[4]);
  view->codes = reinterpret_cast<int8_t*>(part[5]);
  view->scales = reinterpret_cast<float*>(part[6]);
  view->sums = reinterpret_cast<int16_t*>(part[7]);
  view->out = reinterpret_cast<float*>(part[8]);
  return at - base;
}

// ---- mailbox of n-gram rows ------------------------------------------------------------------------------------
//
// In a device's step only the device knows the tokens, so it asks for table rows by id: ids [count], then `posted` = n.
// The store answers with the rows' bytes as the file has them, in order, then `served` = n. The request is posted when
// the step begins and waited for at the layer that reads the rows.

struct NgramMailbox {
  alignas(64) uint32_t posted;  // by the device
  int32_t count;
  alignas(64) uint32_t served;  // by the store
  uint32_t failed;              // request whose rows could not be read: its step is void
  alignas(64) uint32_t stop;
};

struct NgramView {
  NgramMailbox* head;
  int32_t* ids;   // [capacity]
  uint8_t* rows;  // [capacity, row_bytes]
};

STRATA_HD uint64_t ngram_view(uint64_t base, uint64_t capacity, uint64_t row_bytes, NgramView* view) {
  const uint64_t ids = base + line_up(sizeof(NgramMailbox)), rows = ids + line_up(capacity * 4);
  view->head = reinterpret_cast<NgramMailbox*>(base);
  view->ids = reinterpret_cast<int32_t*>(ids);
  view->rows = reinterpret_cast<uint8_t*>(rows);
  return rows + line_up(capacity * row_bytes) - base;
}

// ---- what the policy and the metrics read ----------------------------------------------------------------------

// One distinct expert of one layer of one step.
struct RouteRecord {
  uint32_t epoch;
  uint16_t layer, expert;
  uint16_t rows;   // that chose it, at most 65,535
  uint16_t place;  // Place
};

// A ring with one writer, who never waits: `written` counts records over all time and is stored with release after them.
// A reader that falls more than `capacity` (a power of two) behind has lost the oldest and says how many.
struct RouteRing {
  uint64_t records;  // address of RouteRecord [capacity]
  uint32_t capacity;
  uint32_t written;
};

// Counted over all time, uint64 each; the names in Python stand in memory/counters.py.
enum Counter : uint32_t {
  kSteps,             // replays with routed experts
  kRoutedPairs,       // (row, expert) pairs routed
  kComputedPairs,     // pairs whose row was computed, wherever; equals kRoutedPairs when every step ended well
  kDistinct,          // distinct experts, layer by layer
  kHits,              // of those, in VRAM
  kHitBytes,
  kCopies,            // through the staging ring
  kCopyBytes,
  kCpuExperts,        // computed by the workers
  kCpuBytes,
  kPromotions,        // experts that became resident
  kPromotionBytes,
  kRetirements,
  kWaitsExpired,
  kVoidSteps,
  kRamHits,           // distinct experts found in RAM when a step asked
  kRamMisses,         // that had to be read from the disk while it waited
  kReads,             // reads from the disk, after merging
  kReadBytes,
  kReadErrors,
  kReadWaitNs,        // that steps waited for the disk
  kEvictions,         // from RAM
  kPrefetches,        // experts read ahead
  kPrefetchUsed,      // of those, routed to before they were evicted
  kLookaheadGuesses,  // experts that the next layer's router named
  kLookaheadRight,    // of those, routed to
  kLookaheadRouted,   // distinct experts of the layers that were guessed
  kNgramRows,         // table rows asked for
  kNgramHits,         // of those, in the row cache
  kNgramReads,
  kNgramReadBytes,
  kLookaheadHeld,     // steps in which look-ahead was held back, since it cost more than it saved
  kStagedHits,        // of kHits, those that the staging ring still had
  kPromotionsFromRam, // of a GPU's promotions, those that crossed the link for it: the ring had lost them, or never had them
  kNumCounters
};

}  // namespace strata::tiers
