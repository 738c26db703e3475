// A pretended GPU: a native thread that replays programs, an arena of expert slots no larger than it is told, a link, a
// staging ring, and CPU workers behind a mailbox. Everything goes through strata/tiers.h.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cpu/program.h"
#include "tiers/disk_experts.h"
#include "tiers/miss_split.h"
#include "tiers/sim_link.h"
#include "tiers/workers.h"

namespace strata::tiers {

struct SimOptions {
  std::vector<uint64_t> slots;  // bytes of each expert slot
  uint32_t staging = 4;         // places of the staging ring
  double link_rate = 0;         // bytes per second, 0: as memory
  double cpu_share = -1;        // of misses; negative: by costs
  int workers = 1;
  bool exclusive = false;
  uint64_t limit_ns = 0;
  int32_t rows = 32, k = 1, hidden = 0, inner = 0, experts = 0;  // of the mailbox; the widest layer's
};

class SimDevice : public PolicyDevice {
 public:
  // std::bad_alloc where memory is refused.
  SimDevice(std::shared_ptr<ExpertStore> store, const SimOptions& options);
  ~SimDevice() override;
  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  // Records [begin, end) as one replay on the device's thread; returns the fault bits.
  uint32_t run(Program& program, int64_t begin, int64_t end);

  Residency& residency() { return *residency_; }
  SimLink& link() { return *link_; }
  Workers& workers() { return *workers_; }
  MissSplit& split() { return split_; }
  ExpertStore& store() { return *store_; }
  SlotTable& slot_table() override { return *residency_; }
  const RouteRing& routes() const override { return ring_; }
  Counters& counters() override { return store_->counters(); }

 private:
  friend class DeviceExperts;
  struct Job {
    Program* program = nullptr;
    int64_t begin = 0, end = 0;
    uint32_t faults = 0;
    std::string error;
  };
  void work();
  void replay(Job& job);
  void settle_fault();
  void record(int32_t layer, const ExpertUse& use);

  std::shared_ptr<ExpertStore> store_;
  const SimOptions options_;
  MissSplit split_;
  std::unique_ptr<TierMemory> arena_, mapped_;  // the device's own; what host and device see
  std::vector<uint32_t> arrived_;
  uint32_t released_ = 0, copies_ = 0, posts_ = 0;
  Staging staging_{};
  MailboxLimits limits_{};
  MailboxView box_{};
  uint32_t fault_ = 0;
  std::atomic<uint32_t> kernel_faults_{0};
  std::vector<RouteRecord> records_;
  RouteRing ring_{};
  uint32_t epoch_ = 0;
  uint64_t expert_ns_ = 0, miss_bytes_ = 0;
  bool split_open_ = false;  // a layer of this replay has misses
  std::unique_ptr<SimLink> link_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<Workers> workers_;
  std::mutex running_, lock_;
  std::condition_variable changed_;
  Job* job_ = nullptr;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

// The op record of a layer's routed experts on the device, between group_by_expert and combine.
class DeviceExperts {
 public:
  DeviceExperts(std::shared_ptr<ThreadPool> pool, std::shared_ptr<SimDevice> device, std::shared_ptr<Guesses> guesses,
                int32_t layer, ExpertKernels kernels);
  static void run(const Op& op, int thread, int threads);

 private:
  void begin(uint32_t fault);
  void place();
  void post();
  void post_rows(const std::vector<int32_t>& rows);
  void add(const ExpertUse& use, uint64_t blob);
  bool next_copies();
  void compute(const Op& op, int thread, int threads);
  void collect(int thread, int threads);
  void end(const Op& op);

  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<SimDevice> device_;
  std::shared_ptr<Guesses> guesses_;
  const int32_t layer_;
  const ExpertKernels kernels_;
  const Blob blob_;
  const float* scales_[kPlanes];
  std::vector<ExpertUse> uses_;
  std::vector<size_t> misses_, computed_;  // positions in uses_
  std::vector<int32_t> box_pairs_;         // the step's pair of each pair of the mailbox's list
  size_t next_copy_ = 0;
  std::vector<size_t> copied_;
  bool batch_ready_ = false;
  uint32_t posted_ = 0;
  uint64_t pairs_done_ = 0, began_ = 0;
  ExpertBatch batch_;
};

}  // namespace strata::tiers
