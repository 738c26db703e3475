// The host's side of residency: the state machine of strata/tiers.h over one table and its slots.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tiers/slot_table.h"

namespace strata::tiers {

// Counters of all tiers; each is added to by several threads and read at any time.
struct Counters {
  std::atomic<uint64_t> value[kNumCounters] = {};
  void add(Counter c, uint64_t n = 1) { value[c].fetch_add(n, std::memory_order_relaxed); }
  uint64_t get(Counter c) const { return value[c].load(std::memory_order_relaxed); }
};

// Copies an expert into a slot: called by promote() without the lock, must call Residency::arrived(slot) once, from any
// thread, with whether all bytes are there.
class Link {
 public:
  virtual ~Link() = default;
  virtual void copy(int32_t layer, int32_t expert, uint32_t slot, uint64_t address) = 0;
};

// Every method may be called from any thread. The policy thread calls promote and retire whenever it likes; begin_step
// and end_step are the device's. What may change under a replay is only what no replay reads.
class Residency : public SlotTable {
 public:
  // `bytes[layer]`: of one expert's blob; `slots`: sizes and addresses. std::invalid_argument when there are too many.
  Residency(std::vector<uint64_t> bytes, int32_t num_experts, std::vector<Slot> slots, Link* link, Counters* counters);

  bool promote(int32_t layer, int32_t expert, uint32_t slot) override;
  bool retire(int32_t layer, int32_t expert) override;  // an arrival can always be called off

  // The link's answer: publishes at the next begin_step, or frees the slot.
  void arrived(uint32_t slot, bool complete);

  // Applies what is waiting, then opens an epoch; the table and what it names stay until end_step. Returns the epoch.
  uint32_t begin_step();
  void end_step();

  int32_t slot_of(int32_t layer, int32_t expert) const override;
  uint32_t state(uint32_t slot) const override;
  size_t moving() const override;
  std::vector<Slot> slots() const override;
  const uint32_t* table() const { return table_.data(); }
  const Slot& slot(uint32_t i) const { return slots_[i]; }
  int32_t num_layers() const override { return static_cast<int32_t>(bytes_.size()); }
  int32_t num_experts() const override { return num_experts_; }
  uint64_t expert_bytes(int32_t layer) const override { return bytes_[static_cast<size_t>(layer)]; }
  uint32_t ended() const override { return epochs_.ended; }

 private:
  enum class Change : uint8_t { kNone, kPublish, kRetire, kCallOff };

  bool known(int32_t layer, int32_t expert) const;
  size_t index(int32_t layer, int32_t expert) const;
  void apply(uint32_t slot);
  void release(Slot& slot);

  const std::vector<uint64_t> bytes_;
  const int32_t num_experts_;
  std::vector<uint32_t> table_;
  std::vector<int32_t> holder_;  // slot that an expert is in, whatever its state; -1
  std::vector<Slot> slots_;
  std::vector<Change> changes_;
  std::vector<uint32_t> waiting_;  // slots with a change, or leaving
  Epochs epochs_{};
  Link* link_;
  Counters* counters_;
  mutable std::mutex lock_;
};

// Reads a RouteRing from where it last stopped.
class RouteReader {
 public:
  explicit RouteReader(const RouteRing* ring) : ring_(ring) {}
  // Appends what is new; returns how many records were lost since the last call.
  uint64_t read(std::vector<RouteRecord>& out);

 private:
  const RouteRing* ring_;
  uint32_t next_ = 0;
};

}  // namespace strata::tiers
