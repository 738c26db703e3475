// Thread pool, programs, arenas, instruction sets and the contract's functions over arrays.
#include "cpu/program.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings/bindings.h"
#include "cpu/arena.h"
#include "cpu/dispatch.h"
#include "cpu/float_mode.h"

using namespace strata;

namespace {

uint32_t run_program(Program& program, int64_t begin, int64_t end) {
  const nb::gil_scoped_release release;
  return program.run(begin, end);
}

// Runs one kernel on this thread, outside any program.
void run_once(const std::string& kind, const std::vector<uint64_t>& ptrs, int64_t n) {
  const KernelEntry* kernel = find_kernel(kind);
  if (kernel == nullptr) throw std::invalid_argument("no kernel is named '" + kind + "'");
  std::atomic<uint32_t> faults{0};
  Op op{};
  std::copy(ptrs.begin(), ptrs.end(), op.ptr);
  op.dim[0] = n;
  op.faults = &faults;
  const FloatMode mode;
  kernel->run(op, 0, 1);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int, const std::vector<int>&>(), nb::arg("threads"), nb::arg("cpus") = std::vector<int>{})
      .def_prop_ro("threads", &ThreadPool::size);

  nb::class_<Program>(m, "Program")
      .def(nb::init<std::shared_ptr<ThreadPool>>(), nb::arg("pool"))
      .def("add", &Program::add, nb::arg("kind"), nb::arg("ptrs"), nb::arg("dims"), nb::arg("scalars"))
      .def("run", run_program, nb::arg("begin"), nb::arg("end"))
      .def("__len__", &Program::size);

  nb::class_<Arena>(m, "Arena")
      .def(nb::init<uint64_t, bool>(), nb::arg("nbytes"), nb::arg("huge") = false)
      .def_prop_ro("address", &Arena::address)
      .def_prop_ro("nbytes", &Arena::bytes);

  m.attr("FAULT_NON_FINITE") = static_cast<int>(kFaultNonFinite);
  m.attr("FAULT_RANGE") = static_cast<int>(kFaultRange);
  m.attr("FAULT_NO_TOKEN") = static_cast<int>(kFaultNoToken);
  m.attr("FAULT_MEMORY") = static_cast<int>(kFaultMemory);
  m.def("kernel_names", &kernel_names);
  m.def("isa_level", &isa_level);
  m.def("isa_levels", &isa_levels);
  m.def("set_isa", [](const std::string& level) { set_isa(level); }, nb::arg("level"));
  m.def("apply", [](const std::string& name, uint64_t in, uint64_t out, int64_t n) {
    run_once("map_" + name, {in, out}, n);
  }, nb::arg("name"), nb::arg("source"), nb::arg("out"), nb::arg("n"));
  m.def("fmaf", [](uint64_t a, uint64_t b, uint64_t c, uint64_t out, int64_t n) {
    run_once("map_fma32", {a, b, c, out}, n);
  }, nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("out"), nb::arg("n"));
}
