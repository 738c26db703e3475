#include "tiers/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace strata::tiers {

namespace {

constexpr uint32_t kUnknownAlign = 4096;

// What direct reads of the file must be aligned to; 0 where there are none.
uint32_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx s;
  memset(&s, 0, sizeof s);
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) == 0 && (s.stx_mask & STATX_DIOALIGN) != 0)
    return std::max(s.stx_dio_offset_align, s.stx_dio_mem_align);
#else
  (void)fd;
#endif
  return kUnknownAlign;
}

}  // namespace

StoreFile open_file(const std::string& path, bool direct) {
  const int unbuffered = direct ? ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC) : -1;
  if (unbuffered >= 0) {
    const uint32_t align = direct_alignment(unbuffered);
    if (align > 0) return {path, unbuffered, true, align};
    close(unbuffered);
  }
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), path);
  return {path, fd, false, 1};
}

}  // namespace strata::tiers
