// Anonymous memory for a program's buffers.
#pragma once
#include <cstdint>

namespace strata {

// `bytes` zeroed bytes, page aligned (2 MiB and huge pages advised when `huge`). std::bad_alloc when refused.
class Arena {
 public:
  Arena(uint64_t bytes, bool huge);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void* map_ = nullptr;
  uint64_t mapped_ = 0, address_ = 0, bytes_ = 0;
};

}  // namespace strata
