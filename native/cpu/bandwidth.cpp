#include "cpu/bandwidth.h"

namespace strata {

uint64_t sum_words(const uint64_t* words, size_t count) {
  constexpr size_t kChains = 16;  // independent sums, so that loads and not additions set the pace
  uint64_t sums[kChains] = {};
  size_t i = 0;
  for (; i + kChains <= count; i += kChains)
    for (size_t c = 0; c < kChains; ++c) sums[c] += words[i + c];
  for (; i < count; ++i) sums[0] += words[i];
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace strata
