// Reading memory as fast as it comes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace strata {

// Sum, modulo 2^64, of `count` words; a pure stream of loads.
uint64_t sum_words(const uint64_t* words, size_t count);

}  // namespace strata
