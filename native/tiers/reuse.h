// How likely an expert is to be used again soon, learned from the steps themselves.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace strata::tiers {

// Every kHorizon steps all experts are sorted into cells by age (steps since the last use) and by a use count that decays
// between uses; when the horizon is over, each cell has learned what share of its experts was used meanwhile. An
// expert's score is that share, interpolated between cells. Ranking by such a hazard is what a cache without knowledge
// of the future can do (hit density: Beckmann, Chen and Cidon, NSDI 2018); LRU is the case in which it falls with age
// alone, and the start from which it learns.
class ReuseModel {
 public:
  static constexpr int kHorizon = 4, kAges = 24, kCounts = 8;
  using Table = std::array<double, kAges * kCounts>;

  explicit ReuseModel(size_t experts);

  // One step's distinct experts; or one by one while it runs, and its end.
  void observe(const std::vector<uint32_t>& used);
  void use(uint32_t expert);
  void end_step();

  // Of `expert` at the step after this one; -1 when it was never used.
  float score(uint32_t expert) const;

  // What it has learned, to be kept: per expert the age in steps (-1: never used) and the count, then the two tables.
  struct State {
    std::vector<int32_t> ages;
    std::vector<float> counts;
    std::vector<double> used, seen;
  };
  State state() const;
  // std::invalid_argument when sizes differ or numbers make no sense.
  void restore(const State& state);

 private:
  struct Place {
    float age, count;
  };
  Place place(uint32_t expert, int64_t step) const;
  void begin_step();
  void learn();
  float share(int age, int count) const;

  int64_t next() const { return step_ + (begun_ ? 1 : 0); }

  int64_t step_ = 0;     // steps that have ended
  bool begun_ = false;  // whether the next has begun
  std::vector<int64_t> last_;  // step of the last use; -1
  std::vector<float> count_;   // decayed, as it was right after the last use
  std::vector<uint8_t> cell_, used_;  // of the horizon under way; kNoCell: not seen when it began
  Table used_share_{}, seen_share_{};
};

}  // namespace strata::tiers
