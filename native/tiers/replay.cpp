#include "tiers/replay.h"

#include <stdexcept>

namespace strata::tiers {

PolicyReplay::PolicyReplay(std::vector<uint64_t> bytes, const std::vector<uint64_t>& slots, ChoiceLimits limits)
    : bytes_(std::move(bytes)), resident_(bytes_.size()), reuse_(bytes_.size()), limits_(limits) {
  for (const uint64_t size : slots) seats_.push_back({size, Seat::kEmpty});
}

PolicyReplay::Step PolicyReplay::step(const std::vector<uint32_t>& used) {
  Step done{};
  std::vector<uint32_t> missed;
  for (const uint32_t e : used) {
    if (e >= bytes_.size()) throw std::invalid_argument("an expert outside the model");
    if (resident_[e])
      ++done.hits, done.hit_bytes += bytes_[e];
    else
      missed.push_back(e);
  }
  reuse_.observe(used);
  for (const Swap& s : choose_swaps(reuse_, bytes_, missed, seats_, limits_)) {
    if (s.victim != Seat::kEmpty) resident_[static_cast<size_t>(s.victim)] = false;
    resident_[s.expert] = true;
    seats_[s.slot].expert = s.expert;
    ++done.moved, done.moved_bytes += bytes_[s.expert];
  }
  return done;
}

}  // namespace strata::tiers
