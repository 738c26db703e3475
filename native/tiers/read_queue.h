// Reads of files by other threads: io_uring where the kernel grants it, else a few threads that call pread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tiers/residency.h"
#include "tiers/uring.h"

namespace strata::tiers {

// Bytes [offset, offset + bytes) of a file to `to`, of which the first `need` must exist: direct reads are padded to whole
// sectors, which may end after the file. `done(read, error)` is called once, on the queue's thread: 0, an errno, or
// kTruncated. The caller keeps the record until then.
struct Read {
  int fd = -1;
  uint64_t offset = 0, bytes = 0, need = 0;
  uint8_t* to = nullptr;
  void (*done)(Read*, int error) = nullptr;
  void* owner = nullptr;
  uint64_t got = 0;  // the queue's
};

constexpr int kTruncated = -1;

// Tests only: what goes wrong with reads, counted from now on.
enum class ReadFault : uint32_t { kNone, kShort, kError, kTruncated, kHang };

class ReadQueue {
 public:
  // `threads` 0: io_uring, and four threads where it is refused; else that many threads. `depth`: reads under way.
  ReadQueue(int threads, unsigned depth, Counters* counters);
  ~ReadQueue();  // comes back when reads under way are over; those that wait get ECANCELED
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  const char* method() const { return uring_ ? "io_uring" : "threads"; }

  // Urgent reads go before those that are not, each kind in order.
  void submit(Read* const* reads, size_t count, bool urgent);

  // From the `after`-th read from now on: every read (kShort), or one read (the others). kNone also lets hanging reads go.
  void inject(ReadFault fault, uint32_t after);

 private:
  Read* next();  // null when none waits; with lock_
  void finish(Read* read, int error);
  bool settle(Read* read, int64_t result);  // true: go on reading
  ReadFault planted();
  void run_uring(unsigned depth);
  unsigned feed(Uring& ring);
  void answered(Read* read, int result);
  bool stopping();
  void run_thread();
  void wake();
  unsigned length(const Read* read, ReadFault fault) const;
  void release_hanging();

  Counters* counters_;
  std::mutex lock_;
  std::condition_variable some_;
  std::deque<Read*> urgent_, ahead_, hanging_;
  bool stop_ = false;
  bool uring_ = false;
  int event_ = -1;
  std::atomic<uint32_t> fault_{0}, after_{0};
  std::vector<std::thread> threads_;
};

}  // namespace strata::tiers
