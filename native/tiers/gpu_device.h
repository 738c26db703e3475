// The host's side of experts on a GPU (strata/tiers_gpu.h): the slots as the policy sees them, CPU workers, counters. The
// GPU's side is kernels; this never calls a driver.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "strata/tiers_gpu.h"
#include "tiers/residency.h"
#include "tiers/workers.h"

namespace strata::tiers {

// Changes are appended in the order in which they are asked for, and the device applies them in that order.
class GpuSlots : public SlotTable {
 public:
  GpuSlots(std::vector<uint64_t> bytes, int32_t num_experts, std::vector<Slot> slots, ChangeRing* ring, Counters* counters);

  bool promote(int32_t layer, int32_t expert, uint32_t slot) override;
  bool replace(int32_t layer, int32_t expert, uint32_t slot) override;
  bool replaces() const override { return true; }
  bool retire(int32_t layer, int32_t expert) override;  // not while it is arriving
  int32_t slot_of(int32_t layer, int32_t expert) const override;
  uint32_t state(uint32_t slot) const override;
  std::vector<Slot> slots() const override;
  size_t moving() const override;
  int32_t num_layers() const override { return static_cast<int32_t>(bytes_.size()); }
  int32_t num_experts() const override { return num_experts_; }
  uint64_t expert_bytes(int32_t layer) const override { return bytes_[static_cast<size_t>(layer)]; }
  uint32_t ended() const override { return load_acquire(&ring_->epoch) - 1; }
  bool may_move(int32_t layer) const override;

  // `count` layers from `first` on, past the last one from layer 0 again, are read by a prompt chunk, now or soon.
  void reading(int32_t first, int32_t count) { reading_ = uint64_t{static_cast<uint32_t>(count)} << 32 | static_cast<uint32_t>(first); }

  // Slots that lend their memory: nothing is promoted into them, what lies in them retires. How many are not empty yet, or
  // all of them until the device has applied what empties them; to be asked again.
  size_t lend(const std::vector<uint32_t>& slots);
  void give_back();

 private:
  bool known(int32_t layer, int32_t expert) const;
  size_t index(int32_t layer, int32_t expert) const;
  bool append(const SlotChange& change);
  bool fits(int32_t layer, int32_t expert, uint32_t slot) const;
  bool bring(int32_t layer, int32_t expert, uint32_t slot, int32_t leaving);
  void settle() const;
  bool retire(Slot& slot, uint32_t number);

  const std::vector<uint64_t> bytes_;
  const int32_t num_experts_;
  ChangeRing* ring_;
  Counters* counters_;
  uint32_t written_ = 0;
  mutable std::mutex lock_;
  mutable std::vector<Slot> slots_;
  std::vector<int32_t> holder_;                                  // slot of an expert; -1
  mutable std::deque<std::pair<uint32_t, uint32_t>> arriving_;  // number of the change, slot
  std::vector<bool> lent_;                                       // by slot
  uint32_t emptied_ = 0;                                         // changes after which lent slots are empty
  std::atomic<uint64_t> reading_{0};                             // count, first
};

// Mapped memory that the device is given; its parts in order.
struct GpuMapped {
  ChangeRing* changes;
  TierSettings* settings;
  RouteRing* routes;
  uint64_t* counts;
  MailboxView box;
};

struct GpuOptions {
  std::vector<Slot> slots;
  MailboxLimits limits{};
  int32_t inner = 0;  // the widest inner row
  int workers = 0;
  uint64_t limit_ns = 0;
  uint32_t* faults = nullptr;  // of the backend, by bit
  bool apart = false;          // what the workers compute is no part of steps, and not counted with them
};

class GpuDevice : public PolicyDevice {
 public:
  // Bytes of mapped memory; with a `base` also where its parts are.
  static uint64_t mapped_bytes(uint64_t base, const MailboxLimits& limits, GpuMapped* parts);

  GpuDevice(std::shared_ptr<ExpertStore> store, const GpuOptions& options, uint64_t mapped);
  ~GpuDevice() override;

  GpuSlots& slot_table() override { return slots_; }
  const RouteRing& routes() const override { return *parts_.routes; }
  Counters& counters() override;
  const GpuMapped& parts() const { return parts_; }
  Workers& workers() { return *workers_; }
  const Counters& apart() const { return apart_; }  // what workers have computed whose list is no part of steps
  void close();  // ends the workers: mapped memory may go
  TierSettings& settings() { return *parts_.settings; }

  // A replay is started; its number. `finished`: that and all before it are over. Workers sleep when all are.
  uint32_t started();
  void finished(uint32_t number);

 private:
  std::shared_ptr<ExpertStore> store_;
  GpuMapped parts_{};
  GpuSlots slots_;
  uint32_t fault_ = 0;
  Counters apart_;
  std::atomic<uint32_t> kernel_faults_{0};
  std::mutex counting_;
  std::vector<uint64_t> counted_;  // of the device's counts, already in the store's
  std::unique_ptr<Workers> workers_;
};

}  // namespace strata::tiers
