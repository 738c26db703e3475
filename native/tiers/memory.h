// Anonymous memory for a tier: huge pages, spread over NUMA nodes, page-locked as far as the system allows.
#pragma once
#include <cstdint>

namespace strata::tiers {

class TierMemory {
 public:
  // Reserves `bytes`, 2 MiB aligned; pages come when touched. With several NUMA nodes they are dealt out in turn. With
  // `lock`, as much from the start on as the limit allows is page-locked, which touches it. std::bad_alloc when refused.
  TierMemory(uint64_t bytes, bool lock);
  ~TierMemory();
  TierMemory(const TierMemory&) = delete;
  TierMemory& operator=(const TierMemory&) = delete;

  // Makes the system give every page now, by several threads; std::bad_alloc when it does not. What is promised is then
  // there, and reads are not held up by pages that are still to be cleared.
  void touch();

  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t locked() const { return locked_; }
  int nodes() const { return nodes_; }  // 1: nothing was asked of the system

  // Tests only: from now on reservations of more than `bytes` are refused, locking stops at `locked`.
  static void limit(uint64_t bytes, uint64_t locked);

 private:
  void spread();
  bool touch_part(uint64_t begin, uint64_t end);
  void lock_pages();

  uint8_t *map_ = nullptr, *data_ = nullptr;
  uint64_t mapped_ = 0, bytes_ = 0, locked_ = 0;
  int nodes_ = 1;
};

}  // namespace strata::tiers
