#include "tiers/miss_split.h"

#include <cmath>

namespace strata::tiers {

namespace {
constexpr uint64_t kProbeEvery = 64;  // steps from one that copies everything to the next
constexpr double kMemory = 0.9;       // weight of the past in the measured rates
constexpr double kMargin = 1.02;      // a split that is this much slower than copying is dropped
}  // namespace

void MissSplit::set_costs(const MissCosts& costs) {
  const std::lock_guard<std::mutex> hold(lock_);
  costs_ = costs, known_ = true;
  rate_[0] = rate_[1] = 0;
}

// A guarded split is probed as rarely as the copying is while it is not.
void MissSplit::begin_step() {
  const std::lock_guard<std::mutex> hold(lock_);
  const bool slower = rate_[0] > 0 && rate_[1] > 0 && rate_[0] > rate_[1] * kMargin;
  const bool probe = step_++ % kProbeEvery == kProbeEvery - 1;
  copying_ = by_costs() && (slower != probe);
  counts_.guarded_steps += slower && copying_;
  (copying_ ? counts_.copy_steps : counts_.split_steps) += 1;
}

void MissSplit::end_step(uint64_t ns, uint64_t miss_bytes) {
  if (miss_bytes == 0) return;
  const std::lock_guard<std::mutex> hold(lock_);
  double& rate = rate_[copying_ ? 1 : 0];
  const double now = static_cast<double>(ns) / static_cast<double>(miss_bytes);
  rate = rate == 0 ? now : kMemory * rate + (1 - kMemory) * now;
}

int32_t MissSplit::copies(int32_t misses, uint64_t bytes, float rows) const {
  if (!by_costs()) return misses - static_cast<int32_t>(std::lround(share_ * misses));
  const std::lock_guard<std::mutex> hold(lock_);
  return copying_ || !known_ ? misses : split_misses(misses, bytes, rows, costs_);
}

MissSplit::Report MissSplit::report() const {
  const std::lock_guard<std::mutex> hold(lock_);
  Report report = counts_;
  report.split_ns_byte = rate_[0], report.copy_ns_byte = rate_[1];
  return report;
}

}  // namespace strata::tiers
