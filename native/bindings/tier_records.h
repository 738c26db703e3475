// How op records reach the tiers' objects from Python.
#pragma once
#include <cerrno>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "bindings/bindings.h"
#include "tiers/expert_kernels.h"

// A system error with a path as Python's OSError.
[[noreturn]] inline void raise_os_error(const std::system_error& error) {
  const std::string what = error.what();  // "path: reason"
  const std::string path = what.substr(0, what.rfind(": "));
  errno = error.code().value();
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
  throw nb::python_error();
}

using RecordTuple = std::tuple<std::string, std::vector<uint64_t>, std::vector<int64_t>>;

inline strata::tiers::Recorded recorded(const RecordTuple& r) { return {std::get<0>(r), std::get<1>(r), std::get<2>(r)}; }

inline strata::tiers::ExpertKernels expert_kernels(const RecordTuple& gate_up, const RecordTuple& down) {
  return {recorded(gate_up), recorded(down)};
}
