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

// Tests only: what the thread that takes the n-th unit from now on does instead of computing it; kLag: every third time that
// a thread sees a list it is held up before it looks further.
enum class WorkerFault : uint32_t { kNone, kStall, kDie, kLag };

struct WorkerOptions {
  int threads = 1;
  int64_t inner = 0;  // values of the widest inner row
  uint64_t limit_ns = 0;
  bool polling = false;             // nobody calls rest(): they sleep when all that was started has finished
  uint32_t* fault_words = nullptr;  // by bit of native/cpu/op.h: what kernels report is stored there too
  Counters* counters = nullptr;     // of what they compute; null: the store's
  // Where a device reads what computing costs: kept to what lists take while it copies beside them. Null: nowhere.
  MissCosts* told = nullptr;
};

// A list's work is cut into units that threads take in order: for each item, find its expert in RAM, then the first product by
// 64 features, then the second. Where RAM holds all experts, so that none waits for another's place, the second ones of all
// items come last, by which time the first are mostly there. Nobody waits for a thread by name.
class Workers {
 public:
  // `fault`: the step's word; `kernel_faults` collects the kernels' own bits.
  Workers(const WorkerOptions& options, ExpertStore* store, const MailboxView& box, const MailboxLimits& limits,
          uint32_t* fault, std::atomic<uint32_t>* kernel_faults);
  ~Workers();

  // Types and sizes of a layer, from any program's records.
  void set_layer(int32_t layer, const ExpertKernels& kernels);

  // Between wake and rest the threads poll; otherwise they sleep. `started`: wakes them for a replay; `finished`: that of
  // this number, and those before it, are over.
  uint32_t wake();
  uint32_t started();
  void rest();
  void finished(uint32_t number);
  void set_costs(const MissCosts& alone);  // as measured while nothing else runs
  void inject(WorkerFault fault, uint32_t after);
  void end();  // all threads, and what they tell; a second call does nothing
  int alive() const { return alive_.load(); }

 private:
  struct Item {
    Op gate_up{}, down{};
    ExpertBatch batch;
    std::atomic<uint32_t> state{0};  // of the expert: 0 unknown, 1 pinned, 2 not to be had
    std::atomic<int32_t> gate_left{0}, down_left{0};
    int32_t gate_units = 0, down_units = 0;
  };
  struct Part {
    int32_t first, item;  // unit
    bool down;            // the second product
  };
  void append(int32_t item, bool down);
  void work();
  struct Idle {
    int turn = 0;
    uint64_t since = 0;
  };
  bool idle(Idle& idle);
  void report_faults();
  void open(uint32_t n);
  void prepare(Item& item, const MailboxItem& posted, const ExpertKernels& kernels);
  bool claim(uint32_t n, int32_t* unit);
  void run(uint32_t n, int32_t unit);
  void run_gate_up(Item& item, const MailboxItem& posted, int32_t part);
  void run_down(uint32_t n, int32_t index, int32_t part);
  void learn_cost();
  void tell_cost(float slower);
  void find(Item& item, const MailboxItem& posted);
  void finish(uint32_t n, int32_t index);
  bool stalled(bool* die);
  void lag();

  ExpertStore* store_;
  const MailboxView box_;
  const MailboxLimits limits_;
  const WorkerOptions options_;
  const uint64_t limit_ns_;
  uint32_t* fault_;
  std::atomic<uint32_t>* kernel_faults_;
  std::vector<std::optional<ExpertKernels>> layers_;
  std::vector<std::unique_ptr<Item>> items_;
  MissCosts costs_{};
  std::vector<uint8_t> inner_;  // float rows, or codes, scales and sums, by pair
  uint64_t scales_at_ = 0, sums_at_ = 0;
  std::mutex opening_;
  uint32_t opened_ = 0;
  int32_t units_ = 0;
  std::vector<Part> parts_;  // of the list, in order
  uint64_t opened_at_ = 0;
  float expected_ns_ = 0;          // of the list, by the costs that were measured alone
  std::atomic<float> slower_{1};   // than those costs lists take of late
  std::atomic<uint64_t> ticket_{0};  // list << 32 | next unit
  std::atomic<int32_t> items_left_{0};
  std::atomic<uint32_t> active_{0}, wakes_{0}, finished_{0}, stop_{0}, injected_{0}, after_{0};
  std::atomic<int> alive_{0};
  std::vector<std::thread> threads_;
};

}  // namespace strata::tiers
