#include "tiers/reuse.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace strata::tiers {

namespace {
constexpr uint8_t kNoCell = 255;
constexpr float kAgesPerOctave = 2.0f, kCountsPerOctave = 2.0f;
constexpr float kDecaySteps = 15.0f;  // of the count between uses
constexpr double kForget = 0.995;     // of the tables, a horizon
constexpr double kPrior = 8.0;        // experts that the prior is worth
constexpr float kNewer = 1e-2f;       // an octave of age: among old ones, whose shares are near equal and noisy, the newer stays
static_assert(ReuseModel::kAges * ReuseModel::kCounts < kNoCell);

double prior(int age) { return 1.0 / (1.0 + std::exp2(static_cast<double>(age) / kAgesPerOctave) / 8.0); }

}  // namespace

ReuseModel::ReuseModel(size_t experts) : last_(experts, -1), count_(experts), cell_(experts, kNoCell), used_(experts) {}

ReuseModel::Place ReuseModel::place(uint32_t expert, int64_t step) const {
  const float age = static_cast<float>(step - last_[expert] > 0 ? step - last_[expert] : 1);
  const float a = std::log2(age) * kAgesPerOctave, c = std::log2(count_[expert]) * kCountsPerOctave;
  return {std::fmin(a, kAges - 1.001f), std::fmin(std::fmax(c, 0.0f), kCounts - 1.001f)};
}

void ReuseModel::learn() {
  for (double& x : used_share_) x *= kForget;
  for (double& x : seen_share_) x *= kForget;
  for (uint32_t e = 0; e < cell_.size(); ++e) {
    if (cell_[e] != kNoCell) {
      seen_share_[cell_[e]] += 1.0;
      used_share_[cell_[e]] += used_[e];
    }
    used_[e] = 0;
    cell_[e] = kNoCell;
    if (last_[e] < 0) continue;
    const Place p = place(e, step_);
    cell_[e] = static_cast<uint8_t>(std::lrint(p.age) * kCounts + std::lrint(p.count));
  }
}

void ReuseModel::observe(const std::vector<uint32_t>& used) {
  for (const uint32_t e : used) use(e);
  end_step();
}

void ReuseModel::use(uint32_t expert) {
  begin_step();
  used_[expert] = 1;
  const float kept = last_[expert] < 0 ? 0.0f : count_[expert] * std::exp(static_cast<float>(last_[expert] - step_) / kDecaySteps);
  count_[expert] = kept + 1.0f;
  last_[expert] = step_;
}

void ReuseModel::begin_step() {
  if (!begun_ && step_ % kHorizon == 0) learn();
  begun_ = true;
}

void ReuseModel::end_step() {
  begin_step();
  begun_ = false;
  ++step_;
}

float ReuseModel::share(int age, int count) const {
  const size_t cell = static_cast<size_t>(age * kCounts + count);
  return static_cast<float>((used_share_[cell] + kPrior * prior(age)) / (seen_share_[cell] + kPrior));
}

float ReuseModel::score(uint32_t expert) const {
  if (last_[expert] < 0) return -1.0f;
  const Place p = place(expert, next());
  const int a = static_cast<int>(p.age), c = static_cast<int>(p.count);
  const float u = p.age - static_cast<float>(a), v = p.count - static_cast<float>(c);
  const float younger = share(a, c) * (1 - v) + share(a, c + 1) * v, older = share(a + 1, c) * (1 - v) + share(a + 1, c + 1) * v;
  return younger * (1 - u) + older * u - kNewer * std::log2(static_cast<float>(next() - last_[expert]));
}

ReuseModel::State ReuseModel::state() const {
  State s{{}, count_, {used_share_.begin(), used_share_.end()}, {seen_share_.begin(), seen_share_.end()}};
  for (const int64_t last : last_) s.ages.push_back(last < 0 ? -1 : static_cast<int32_t>(next() - last));
  return s;
}

void ReuseModel::restore(const State& s) {
  if (s.ages.size() != last_.size() || s.counts.size() != count_.size() || s.used.size() != used_share_.size() ||
      s.seen.size() != seen_share_.size())
    throw std::invalid_argument("what was learned is of another model");
  int64_t oldest = 0;
  for (const int32_t age : s.ages) oldest = age > oldest ? age : oldest;
  for (size_t i = 0; i < s.used.size(); ++i)
    if (!(s.seen[i] >= 0 && s.seen[i] < 1e12 && s.used[i] >= 0 && s.used[i] <= s.seen[i]))
      throw std::invalid_argument("what was learned holds impossible shares");
  for (size_t e = 0; e < s.ages.size(); ++e)
    if (s.ages[e] >= 0 && !(s.ages[e] > 0 && s.counts[e] >= 1.0f && s.counts[e] < 1e6f))
      throw std::invalid_argument("what was learned holds impossible counts");
  step_ = oldest;
  for (size_t e = 0; e < s.ages.size(); ++e) last_[e] = s.ages[e] < 0 ? -1 : step_ - s.ages[e];
  count_ = s.counts;
  for (size_t i = 0; i < s.used.size(); ++i) used_share_[i] = s.used[i], seen_share_[i] = s.seen[i];
  std::fill(cell_.begin(), cell_.end(), kNoCell);
  std::fill(used_.begin(), used_.end(), uint8_t{0});
}

}  // namespace strata::tiers
