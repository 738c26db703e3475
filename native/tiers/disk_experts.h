// A layer's routed experts where RAM holds only some of them: the op record of the plain CPU backend.
#pragma once
#include <memory>
#include <vector>

#include "cpu/pool.h"
#include "tiers/expert_kernels.h"
#include "tiers/store.h"

namespace strata::tiers {

// The guesses of each layer's last step, compared with what was then routed.
class Guesses {
 public:
  Guesses(size_t layers, Counters* counters) : guessed_(layers), counters_(counters) {}
  void guess(int32_t layer, std::vector<int32_t> experts);
  void routed(int32_t layer, const std::vector<int32_t>& experts);

 private:
  std::vector<std::vector<int32_t>> guessed_;  // ascending; empty: none
  Counters* counters_;
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
  std::vector<float> logits_;
};

}  // namespace strata::tiers
