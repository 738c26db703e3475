// Prints a hash of every format's products, so that builds for two processors can be compared.
#include <cstdio>
#include <vector>

#include "cpu/kernels/linear_rows.h"

using namespace strata;
using namespace strata::STRATA_LEVEL;

namespace {

constexpr int64_t kValues = 512, kRows = 3, kFeatures = 19;

struct Random {  // xorshift
  uint32_t state = 1;
  uint32_t next() { return state ^= state << 13, state ^= state >> 17, state ^= state << 5; }
};

uint32_t hash(const std::vector<float>& values) {
  uint32_t h = 2166136261u;
  for (float x : values) h = (h ^ (x == x ? float_bits(x) : 0u)) * 16777619u;  // NaN has more than one pattern
  return h;
}

}  // namespace

int main(int, char** arguments) {
  const bool damaged = arguments[1] != nullptr;  // one bit of a weight, so that the comparison can be seen to fail
  Random random;
  std::vector<int8_t> codes(kRows * kValues);
  std::vector<float> scales(kRows * kValues / kBlock);
  std::vector<int16_t> sums(kRows * kValues / 16);
  for (auto& c : codes) c = static_cast<int8_t>(static_cast<int>(random.next() % 255) - 127);
  for (auto& s : scales) s = static_cast<float>(random.next() % 1000) / 8192.0f;
  for (size_t i = 0; i < sums.size(); ++i)
    for (size_t j = 0; j < 16; ++j) sums[i] = static_cast<int16_t>(sums[i] + codes[16 * i + j]);
  for (int id = 0; id < 64; ++id) {
    const auto type = static_cast<QuantType>(id);
    const int64_t row_bytes = quantised_row_bytes(type, kValues);
    if (row_bytes == 0) continue;
    std::vector<uint8_t> weight(static_cast<size_t>(row_bytes * kFeatures));
    for (auto& w : weight) w = static_cast<uint8_t>(random.next() & 0x3b);  // small scales
    if (damaged) weight[weight.size() / 2 + 3] ^= 1;
    std::vector<float> out(kRows * kFeatures);
    const QuantisedRows x{kValues / kBlock, codes.data(), scales.data(), sums.data()};
    const Fault fault =
        linear_rows(type, x, nullptr, kRows, weight.data(), kFeatures, out.data(), kFeatures);
    std::printf("%d %d %08x\n", id, static_cast<int>(fault), hash(out));
  }
}
