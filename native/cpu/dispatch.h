// Which instruction set's kernels run.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cpu/op.h"

namespace strata {

// Levels this processor can run, slowest first: generic, avx2, avxvnni, avx512.
std::vector<std::string> isa_levels();

// The level in use: the best one unless set_isa chose another.
std::string isa_level();

// Chooses the kernels of programs built from now on; std::invalid_argument when the processor lacks the level.
void set_isa(std::string_view level);

// The active table's entry of that name, or null.
const KernelEntry* find_kernel(std::string_view name);

std::vector<std::string> kernel_names();

}  // namespace strata
