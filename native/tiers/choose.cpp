#include "tiers/choose.h"

#include <algorithm>
#include <map>

namespace strata::tiers {

namespace {

struct Ranked {
  float score;
  uint32_t index;  // of a seat or an expert
};

// Seats of one size: free ones, and the residents with the lowest scores, lowest first.
struct SizeClass {
  std::vector<uint32_t> free;
  std::vector<Ranked> low;
  size_t taken = 0;
};

using Classes = std::map<uint64_t, SizeClass>;

Classes sort_seats(const ReuseModel& reuse, const std::vector<Seat>& seats, size_t most) {
  Classes classes;
  for (uint32_t i = 0; i < seats.size(); ++i) {
    SizeClass& c = classes[seats[i].bytes];
    if (seats[i].expert == Seat::kEmpty) c.free.push_back(i);
    if (seats[i].expert >= 0) c.low.push_back({reuse.score(static_cast<uint32_t>(seats[i].expert)), i});
  }
  const auto lower = [](const Ranked& a, const Ranked& b) { return a.score < b.score || (a.score == b.score && a.index < b.index); };
  for (auto& [bytes, c] : classes) {
    const size_t n = std::min(most, c.low.size());
    std::partial_sort(c.low.begin(), c.low.begin() + static_cast<std::ptrdiff_t>(n), c.low.end(), lower);
    c.low.resize(n);
    std::reverse(c.free.begin(), c.free.end());
  }
  return classes;
}

// The size whose seat the expert should take; end() where none gains. `victim`: whether it holds a resident.
Classes::iterator find_seat(Classes& classes, uint64_t bytes, float score, float gain, bool* victim) {
  auto best = classes.end();
  for (auto c = classes.lower_bound(bytes); c != classes.end(); ++c) {
    if (!c->second.free.empty()) {
      *victim = false;
      return c;
    }
    if (c->second.taken == c->second.low.size()) continue;
    const float low = c->second.low[c->second.taken].score;
    if (score > low + gain && (best == classes.end() || low < best->second.low[best->second.taken].score)) best = c;
  }
  *victim = true;
  return best;
}

}  // namespace

std::vector<Swap> choose_swaps(const ReuseModel& reuse, const std::vector<uint64_t>& expert_bytes,
                               const std::vector<uint32_t>& wanted, const std::vector<Seat>& seats, ChoiceLimits limits) {
  Classes classes = sort_seats(reuse, seats, wanted.size());
  std::vector<Ranked> order;
  for (const uint32_t e : wanted) order.push_back({reuse.score(e) / static_cast<float>(expert_bytes[e]), e});
  std::stable_sort(order.begin(), order.end(), [](const Ranked& a, const Ranked& b) { return a.score > b.score; });
  std::vector<Swap> swaps;
  for (const Ranked& o : order) {
    const uint64_t bytes = expert_bytes[o.index];
    if (bytes > limits.bytes) continue;
    bool victim = false;
    const auto c = find_seat(classes, bytes, reuse.score(o.index), limits.gain, &victim);
    if (c == classes.end()) continue;
    uint32_t seat;
    if (victim) {
      seat = c->second.low[c->second.taken++].index;
    } else {
      seat = c->second.free.back();
      c->second.free.pop_back();
    }
    swaps.push_back({seat, o.index, victim ? seats[seat].expert : Seat::kEmpty});
    limits.bytes -= bytes;
  }
  return swaps;
}

}  // namespace strata::tiers
