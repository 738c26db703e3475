// What each bindings/*.cpp file adds to the module.
#pragma once
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_program(nb::module_& m);
void bind_gguf(nb::module_& m);
void bind_hardware(nb::module_& m);
void bind_quants(nb::module_& m);
void bind_text(nb::module_& m);
void bind_tiers(nb::module_& m);
void bind_tiers_gpu(nb::module_& m);
void bind_tiers_ngram(nb::module_& m);
void bind_tiers_policy(nb::module_& m);
void bind_tiers_policy_device(nb::module_& m);
void bind_tiers_sim(nb::module_& m);
