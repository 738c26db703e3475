// A layer's routed experts where RAM holds only some of them: the op record of the plain CPU backend.
#pragma once
#include <memory>
#include <vector>

#include "cpu/pool.h"
#include "tiers/expert_kernels.h"
#include "tiers/store.h"

namespace strata::tiers {

// What look-ahead guessed, compared with what was then routed, for all programs of a model. It guards itself: one step in
// sixteen is made the other way, and the way whose steps lose less time to the disk and to guessing is taken.
class Guesses {
 public:
  Guesses(size_t layers, Counters* counters) : guessed_(layers), counters_(counters) {}

  // Whether this step looks ahead; changes between layers of the trunk's first only.
  bool active() const { return active_; }
  void guess(int32_t layer, std::vector<int32_t> experts, uint64_t took_ns);
  // A layer's experts; layers come in order, so that one that is not after the last opens a step.
  void routed(int32_t layer, const std::vector<int32_t>& experts);

 private:
  void close_step();

  std::vector<std::vector<int32_t>> guessed_;  // ascending; empty: none
  Counters* counters_;
  bool active_ = true;
  int32_t last_ = -1;
  uint64_t step_ = 0, distinct_ = 0, guess_ns_ = 0, waited_before_ = 0;
  double lost_[2] = {0, 0};  // ns an expert, without and with look-ahead
};

// Between group_by_expert and combine: computes what RAM holds while the rest is read, then that, until all is done.
class DiskExperts {
 public:
  DiskExperts(std::shared_ptr<ThreadPool> pool, std::shared_ptr<ExpertStore> store, std::shared_ptr<Guesses> guesses,
              int32_t layer, ExpertKernels kernels, uint64_t limit_ns);

  // An op record's kernel: ptr 0 is the object.
  static void run(const Op& op, int thread, int threads);

 private:
  void begin(uint32_t fault);
  void next();
  void end_batch();

  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<ExpertStore> store_;
  std::shared_ptr<Guesses> guesses_;
  const int32_t layer_;
  const ExpertKernels kernels_;
  const uint64_t limit_ns_;
  const float* scales_[3];
  std::vector<int32_t> experts_, taken_;
  std::vector<uint8_t> done_;
  size_t count_ = 0;
  bool first_ = true;
  uint32_t fault_ = 0;
  ExpertBatch batch_;
};

// After a layer's router product: the next router's product of the same rows names experts to read ahead.
class LookaheadStep {
 public:
  LookaheadStep(std::shared_ptr<ThreadPool> pool, std::shared_ptr<ExpertStore> store, std::shared_ptr<Guesses> guesses,
                const Recorded& product, int32_t layer, int32_t experts, int32_t k, int32_t max_rows);
  static void run(const Op& op, int thread, int threads);

 private:
  void choose();

  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<ExpertStore> store_;
  std::shared_ptr<Guesses> guesses_;
  Op product_;
  const int32_t layer_, num_experts_, k_;
  const int32_t* live_;
  uint64_t began_ = 0;
  std::vector<float> logits_;
};

}  // namespace strata::tiers
