#include "cpu/arena.h"

#include <sys/mman.h>

#include <limits>
#include <new>

namespace strata {

namespace {
constexpr uint64_t kHugePage = uint64_t{2} << 20;
}

Arena::Arena(uint64_t bytes, bool huge) : bytes_(bytes) {
  const uint64_t slack = huge ? kHugePage : 0, size = bytes > 0 ? bytes : 1;
  if (size > std::numeric_limits<uint64_t>::max() - slack) throw std::bad_alloc();
  mapped_ = size + slack;
  map_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map_ == MAP_FAILED) throw std::bad_alloc();
  address_ = reinterpret_cast<uint64_t>(map_);
  if (!huge) return;
  address_ = (address_ + kHugePage - 1) / kHugePage * kHugePage;
  madvise(reinterpret_cast<void*>(address_), size, MADV_HUGEPAGE);  // advice: refusal costs speed only
}

Arena::~Arena() { munmap(map_, mapped_); }

}  // namespace strata
