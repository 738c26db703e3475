// Which experts should change places: a pure function of scores, slots and what the link may carry.
#pragma once
#include <cstdint>
#include <vector>

#include "tiers/reuse.h"

namespace strata::tiers {

// A slot as the choice sees it. `expert`: number layer * num_experts + expert, or kEmpty, or kBusy (its bytes move).
struct Seat {
  static constexpr int64_t kEmpty = -1, kBusy = -2;
  uint64_t bytes;
  int64_t expert;
};

struct Swap {
  uint32_t slot, expert;
  int64_t victim;  // Seat::kEmpty: the slot was free
};

struct ChoiceLimits {
  uint64_t bytes = ~uint64_t{0};  // that may be moved
  float gain = 0.0f;              // by which a newcomer's score must beat its victim's
};

// Experts of `wanted` (absent ones that were used) that should come in, best gain a byte first, each into the smallest
// size of slot that holds it: a free one, or that of the resident with the lowest score there or in larger sizes.
std::vector<Swap> choose_swaps(const ReuseModel& reuse, const std::vector<uint64_t>& expert_bytes,
                               const std::vector<uint32_t>& wanted, const std::vector<Seat>& seats, ChoiceLimits limits);

}  // namespace strata::tiers
