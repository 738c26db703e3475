// The residency policy: a thread that reads what steps routed to and moves experts into VRAM and out of it. It asks while a
// step runs, for what its first layers missed, so that the next step has it: the staging ring may keep it no longer.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tiers/choose.h"
#include "tiers/residency.h"

namespace strata::tiers {

struct PolicyOptions {
  double link_rate = 0;  // bytes per second that promotions may use with those of steps; 0: no limit
  float gain = 0.05f;    // hysteresis of a swap, in shares of uses
};

class Policy {
 public:
  Policy(std::shared_ptr<PolicyDevice> device, PolicyOptions options);
  ~Policy();
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // What it has learned; `restore` comes before `start` and returns the experts of the best scores, best first.
  ReuseModel::State state();
  std::vector<uint32_t> restore(const ReuseModel::State& state, size_t most);

  void start();
  // Ends the thread; swaps that have begun are completed by the device.
  void stop();

  uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }
  uint64_t skipped() const { return skipped_.load(std::memory_order_relaxed); }

 private:
  void work();
  void take(const std::vector<RouteRecord>& records);
  void finish_layer();
  void finish_step();
  void swap();
  bool ask(const Swap& swap);
  void promote_waiting();
  uint64_t allowance();
  std::vector<Seat> seats() const;

  std::shared_ptr<PolicyDevice> device_;
  const PolicyOptions options_;
  std::vector<uint64_t> bytes_;  // by expert number
  std::mutex lock_;              // of reuse_
  ReuseModel reuse_;
  RouteReader reader_;
  uint32_t epoch_ = 0;
  std::vector<uint32_t> used_, missed_;  // of the layer that is being read
  int32_t layer_ = -1;
  bool begun_ = false, prompt_ = false;  // whether the step has records; whether any layer's were a prompt's
  std::vector<uint32_t> wanted_;         // that missed, of layers before, and nobody has been asked for
  std::vector<int64_t> coming_;             // by slot: the expert that it is kept for until it is free; Seat::kEmpty
  size_t num_coming_ = 0;                   // of them
  uint64_t moved_at_ = 0, step_bytes_ = 0;  // when the link's allowance was last counted, and step copies by then
  double credit_ = 0;
  std::atomic<uint64_t> steps_{0}, lost_{0}, skipped_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace strata::tiers
