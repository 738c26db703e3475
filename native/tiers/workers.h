// The CPU workers of the mailbox: threads that compute posted experts where they lie in RAM.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tiers/expert_kernels.h"
#include "tiers/store.h"

namespace strata::tiers {

// Tests only: what the thread that takes the n-th unit from now on does instead of computing it.
enum class WorkerFault : uint32_t { kNone, kStall, kDie };

// A list's work is cut into units that threads take in order: for each item, find its expert in RAM, then products by 64
// features. Nobody waits for a thread by name, so one that stalls holds up only what it took.
class Workers {
 public:
  // `inner`: the widest inner row. `fault`: the step's word; `kernel_faults` collects the kernels' own bits.
  Workers(int threads, ExpertStore* store, const MailboxView& box, const MailboxLimits& limits, int64_t inner,
          uint64_t limit_ns, uint32_t* fault, std::atomic<uint32_t>* kernel_faults);
  ~Workers();

  // Types and sizes of a layer, from any program's records.
  void set_layer(int32_t layer, const ExpertKernels& kernels);

  // Between wake and rest the threads poll; otherwise they sleep.
  void wake();
  void rest();
  void inject(WorkerFault fault, uint32_t after);
  int alive() const { return alive_.load(); }

 private:
  struct Item {
    Op gate_up{}, down{};
    ExpertBatch batch;
    std::atomic<uint32_t> state{0};  // of the expert: 0 unknown, 1 pinned, 2 not to be had
    std::atomic<int32_t> gate_left{0}, down_left{0};
    int32_t first_unit = 0, gate_units = 0, down_units = 0;
  };
  void work();
  bool idle(int turn);
  void open(uint32_t n);
  void prepare(Item& item, const MailboxItem& posted, const ExpertKernels& kernels);
  bool claim(uint32_t n, int32_t* unit);
  void run(uint32_t n, int32_t unit);
  void find(Item& item, const MailboxItem& posted);
  void finish(uint32_t n, int32_t index);
  bool stalled(bool* die);

  ExpertStore* store_;
  const MailboxView box_;
  const MailboxLimits limits_;
  const uint64_t limit_ns_;
  uint32_t* fault_;
  std::atomic<uint32_t>* kernel_faults_;
  std::vector<std::optional<ExpertKernels>> layers_;
  std::vector<std::unique_ptr<Item>> items_;
  std::vector<uint8_t> inner_;  // float rows, or codes, scales and sums, by pair
  uint64_t scales_at_ = 0, sums_at_ = 0;
  std::mutex opening_;
  uint32_t opened_ = 0;
  int32_t units_ = 0;
  std::atomic<uint64_t> ticket_{0};  // list << 32 | next unit
  std::atomic<int32_t> items_left_{0};
  std::atomic<uint32_t> active_{0}, stop_{0}, injected_{0}, after_{0};
  std::atomic<int> alive_{0};
  std::vector<std::thread> threads_;
};

}  // namespace strata::tiers
