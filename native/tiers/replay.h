// A routing trace replayed against the residency policy, step by step, without threads or copies.
#pragma once
#include <vector>

#include "tiers/choose.h"

namespace strata::tiers {

class PolicyReplay {
 public:
  // `bytes`: of every expert by number; `slots`: of every slot.
  PolicyReplay(std::vector<uint64_t> bytes, const std::vector<uint64_t>& slots, ChoiceLimits limits);

  struct Step {
    uint64_t hits, hit_bytes, moved, moved_bytes;
  };
  // One step's distinct experts: those resident when it began are hits; then experts change places.
  Step step(const std::vector<uint32_t>& used);

 private:
  std::vector<uint64_t> bytes_;
  std::vector<Seat> seats_;
  std::vector<bool> resident_;
  ReuseModel reuse_;
  const ChoiceLimits limits_;
};

}  // namespace strata::tiers
