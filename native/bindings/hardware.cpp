// Bindings of what measures the machine.
#include "bindings/bindings.h"
#include "cpu/bandwidth.h"

void bind_hardware(nb::module_& m) {
  m.def(
      "sum_words",
      [](uint64_t address, size_t count) {
        const auto* words = reinterpret_cast<const uint64_t*>(address);
        nb::gil_scoped_release release;
        return strata::sum_words(words, count);
      },
      nb::arg("address"), nb::arg("count"), "Sum of `count` 64-bit words, read once at the speed of memory.");
}
