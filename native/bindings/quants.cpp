// Block formats for tests and for reading embedding rows: addresses are plain integers, callers own the memory.
#include "strata/quants.h"

#include <nanobind/stl/string.h>

#include <string>

#include "bindings/bindings.h"

namespace {

using namespace strata;

// Blocks that hold `values`; throws unless the type is known, the addresses are not null and the count is whole blocks.
int64_t block_count(int type, int64_t values, int block_values, bool known) {
  if (!known) throw nb::value_error(("quant type " + std::to_string(type) + " is not in the table").c_str());
  if (values < 0 || values % block_values)
    throw nb::value_error((std::to_string(values) + " values are not whole blocks of " + std::to_string(block_values)).c_str());
  return values / block_values;
}

void check_addresses(uint64_t in, uint64_t out) {
  if (in == 0 || out == 0) throw nb::value_error("address is null");
}

// Writes values / 32 structs Block32.
void block32(int type, uint64_t raw, int64_t values, uint64_t out) {
  check_addresses(raw, out);
  int block_values = 1;
  const auto size = [&]<QuantType T>() { block_values = Format<T>::values; };
  const int64_t blocks = block_count(type, values, block_values, with_quantised_format(QuantType(type), size));
  with_quantised_format(QuantType(type), [&]<QuantType T>() {
    auto* p = reinterpret_cast<const uint8_t*>(raw);
    auto* o = reinterpret_cast<Block32*>(out);
    for (int64_t b = 0; b < blocks; ++b, p += Format<T>::bytes)
      for (int i = 0; i < Format<T>::values / 32; ++i) Format<T>::block32(p, i, *o++);
  });
}

// Writes `values` float32.
void dequantize(int type, uint64_t raw, int64_t values, uint64_t out) {
  check_addresses(raw, out);
  int block_values = 1;
  const auto size = [&]<QuantType T>() { block_values = Format<T>::values; };
  const int64_t blocks = block_count(type, values, block_values, with_format(QuantType(type), size));
  with_format(QuantType(type), [&]<QuantType T>() {
    auto* p = reinterpret_cast<const uint8_t*>(raw);
    auto* o = reinterpret_cast<float*>(out);
    for (int64_t b = 0; b < blocks; ++b, p += Format<T>::bytes, o += Format<T>::values) dequantize_block<T>(p, o);
  });
}

// The contract's chain over one run of blocks, no segments: int8 codes [k], int16 sums [k / 16], float scales [k / 32].
float dot(int type, uint64_t raw, int64_t k, uint64_t codes, uint64_t sums, uint64_t scales) {
  check_addresses(raw, codes);
  check_addresses(sums, scales);
  int block_values = 1;
  const auto size = [&]<QuantType T>() { block_values = Format<T>::values; };
  const int64_t blocks = block_count(type, k, block_values, with_quantised_format(QuantType(type), size));
  float y = 0.0f;
  with_quantised_format(QuantType(type), [&]<QuantType T>() {
    auto* p = reinterpret_cast<const uint8_t*>(raw);
    auto* q = reinterpret_cast<const int8_t*>(codes);
    auto* s = reinterpret_cast<const int16_t*>(sums);
    auto* d = reinterpret_cast<const float*>(scales);
    for (int64_t b = 0; b < blocks; ++b, p += Format<T>::bytes)
      for (int i = 0; i < Format<T>::values / 32; ++i, q += 32, s += 2) {
        Block32 w;
        Format<T>::block32(p, i, w);
        y = dot32<T>(w, q, s, *d++, y);
      }
  });
  return y;
}

}  // namespace

void bind_quants(nb::module_& m) {
  m.def("quants_block32", &block32, nb::arg("type"), nb::arg("raw"), nb::arg("values"), nb::arg("out"));
  m.def("quants_dequantize", &dequantize, nb::arg("type"), nb::arg("raw"), nb::arg("values"), nb::arg("out"));
  m.def("quants_dot", &dot, nb::arg("type"), nb::arg("raw"), nb::arg("k"), nb::arg("codes"), nb::arg("sums"),
        nb::arg("scales"));
}
