// A link between RAM and a pretended GPU: one thread that copies, no faster than it is told.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "tiers/blob.h"

namespace strata::tiers {

// Tests only: what the thread does with its next copy.
enum class LinkFault : uint32_t { kNone, kStall };

class SimLink : public Link {
 public:
  // `rate`: bytes per second, 0: as fast as memory; `exclusive`: experts in VRAM leave RAM first.
  SimLink(ExpertStore* store, double rate, bool exclusive, uint64_t limit_ns, Counters* counters);
  ~SimLink() override;

  void attach(Residency* residency, const Staging& staging) { residency_ = residency, staging_ = staging; }

  // A promotion; waits while there are step copies.
  void copy(int32_t layer, int32_t expert, uint32_t slot, uint64_t address) override;
  // Copy number n of the staging ring, for the step under way; `fault` is the step's.
  void stream(int32_t layer, int32_t expert, uint32_t n, uint32_t* fault);
  // Forgets step copies that have not begun.
  void cancel();
  void inject(LinkFault fault);

 private:
  struct Job {
    int32_t layer, expert;
    uint32_t number;   // of a step copy; 0: a promotion
    uint32_t slot;
    uint64_t address;  // of a promotion
    uint32_t* fault;
  };
  void work();
  void run(const Job& job);
  bool move(const Job& job, uint64_t to, uint32_t* fault);
  bool wait_for_place(const Job& job);
  void stall();

  ExpertStore* store_;
  const double rate_;
  const bool exclusive_;
  const uint64_t limit_ns_;
  Counters* counters_;
  Residency* residency_ = nullptr;
  Staging staging_{};
  std::mutex lock_;
  std::condition_variable some_;
  std::deque<Job> step_, promotions_;
  bool stop_ = false;
  uint64_t free_at_ = 0;  // when the link has moved what it was given
  std::atomic<uint32_t> fault_{0}, halted_{0};
  std::thread thread_;
};

}  // namespace strata::tiers
