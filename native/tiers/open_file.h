// A file to read from: unbuffered where it can be.
#pragma once
#include <cstdint>
#include <string>

namespace strata::tiers {

struct StoreFile {
  std::string path;
  int fd;
  bool direct;
  uint32_t align;  // of offsets, lengths and memory of direct reads; 1 for buffered ones
};

// std::system_error with the path when it cannot be opened.
StoreFile open_file(const std::string& path, bool direct);

}  // namespace strata::tiers
