// Many small reads of one file at once: what a batch of table rows needs.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tiers/read_queue.h"
#include "tiers/uring.h"

namespace strata::tiers {

// Bytes [offset, offset + bytes), at least `need` of them, handed to `done` in a buffer that is valid during the call.
struct SmallRead {
  uint64_t offset;
  uint32_t bytes, need;
};

class RowReader {
 public:
  static constexpr uint32_t kMostBytes = 16384;

  // `threads` 0: io_uring, four threads where it is refused.
  RowReader(int fd, int threads, Counters* counters);

  // Makes all reads; done(i, data) for each, in any order, on this thread. 0, an errno, or kTruncated.
  int read(const std::vector<SmallRead>& reads, const std::function<void(size_t, const uint8_t*)>& done);

  const char* method() const { return ring_ ? "io_uring" : "threads"; }
  void inject(ReadFault fault, uint32_t after);

 private:
  static constexpr unsigned kDepth = 128;
  int read_uring(const std::vector<SmallRead>& reads, const std::function<void(size_t, const uint8_t*)>& done);
  int read_threads(const std::vector<SmallRead>& reads, const std::function<void(size_t, const uint8_t*)>& done);
  int64_t blocking(const SmallRead& read, uint8_t* to);
  bool planted(int64_t* result);
  uint8_t* buffer(size_t i) { return buffers_.get() + i * kMostBytes; }

  const int fd_;
  const int threads_;
  Counters* counters_;
  std::unique_ptr<Uring> ring_;
  std::unique_ptr<uint8_t, void (*)(void*)> buffers_;
  std::atomic<uint32_t> fault_{0}, after_{0};
};

}  // namespace strata::tiers
