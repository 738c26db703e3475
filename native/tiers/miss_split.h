// Who computes a layer's misses: the link and the device, or the CPU workers.
#pragma once
#include <cstdint>
#include <mutex>

#include "strata/tiers.h"

namespace strata::tiers {

// A share that was asked for, or the split of strata/tiers.h by measured costs with a guard: now and then a step copies
// everything, and while that is measured to be faster, so does every step.
class MissSplit {
 public:
  // `share`: of misses that the CPU takes, 0 to 1; negative: by costs.
  explicit MissSplit(double share) : share_(share) {}

  void set_costs(const MissCosts& costs);
  bool by_costs() const { return share_ < 0; }

  // Opens a step; end_step tells what its expert layers took and how many bytes missed.
  void begin_step();
  void end_step(uint64_t ns, uint64_t miss_bytes);

  // How many of a layer's misses to copy.
  int32_t copies(int32_t misses, uint64_t bytes, float rows) const;

  struct Report {
    uint64_t split_steps, copy_steps, guarded_steps;
    double split_ns_byte, copy_ns_byte;
  };
  Report report() const;

 private:
  const double share_;
  MissCosts costs_{};
  bool known_ = false, copying_ = false;
  uint64_t step_ = 0;
  double rate_[2] = {0, 0};  // ns a missed byte: split, all copied
  Report counts_{};
  mutable std::mutex lock_;
};

}  // namespace strata::tiers
