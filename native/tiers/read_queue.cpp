#include "tiers/read_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace strata::tiers {

namespace {
constexpr uint64_t kPiece = 1u << 30;  // of one system call
constexpr unsigned kSector = 4096;
constexpr int kFallbackThreads = 4;
}  // namespace

ReadQueue::ReadQueue(int threads, unsigned depth, Counters* counters) : counters_(counters) {
  if (threads == 0) {
    event_ = eventfd(0, EFD_CLOEXEC);
    uring_ = event_ >= 0 && Uring(2).ok();
  }
  if (uring_) {
    threads_.emplace_back([this, depth] { run_uring(depth); });
    return;
  }
  for (int i = 0; i < (threads > 0 ? threads : kFallbackThreads); ++i) threads_.emplace_back([this] { run_thread(); });
}

ReadQueue::~ReadQueue() {
  {
    const std::lock_guard<std::mutex> lock(lock_);
    stop_ = true;
  }
  wake();
  for (std::thread& thread : threads_) thread.join();
  for (std::deque<Read*>* queue : {&urgent_, &ahead_, &hanging_})
    for (Read* read : *queue) read->done(read, ECANCELED);
  if (event_ >= 0) close(event_);
}

void ReadQueue::wake() {
  some_.notify_all();
  const uint64_t one = 1;
  if (uring_ && write(event_, &one, sizeof one) < 0) return;  // only a counter at its limit: the reader is awake then
}

void ReadQueue::submit(Read* const* reads, size_t count, bool urgent) {
  {
    const std::lock_guard<std::mutex> lock(lock_);
    for (size_t i = 0; i < count; ++i) {
      reads[i]->got = 0;
      (urgent ? urgent_ : ahead_).push_back(reads[i]);
    }
  }
  wake();
}

void ReadQueue::inject(ReadFault fault, uint32_t after) {
  after_.store(after);
  fault_.store(static_cast<uint32_t>(fault));
  if (fault == ReadFault::kNone) release_hanging();
}

void ReadQueue::release_hanging() {
  {
    const std::lock_guard<std::mutex> lock(lock_);
    for (Read* read : hanging_) urgent_.push_back(read);
    hanging_.clear();
  }
  wake();
}

ReadFault ReadQueue::planted() {
  const ReadFault fault = static_cast<ReadFault>(fault_.load(std::memory_order_relaxed));
  if (fault == ReadFault::kNone) return fault;
  if (fault == ReadFault::kShort) return after_.load() == 0 || after_.fetch_sub(1) == 0 ? fault : ReadFault::kNone;
  return after_.fetch_sub(1) == 0 ? fault : ReadFault::kNone;
}

Read* ReadQueue::next() {
  for (std::deque<Read*>* queue : {&urgent_, &ahead_}) {
    if (queue->empty()) continue;
    Read* read = queue->front();
    queue->pop_front();
    return read;
  }
  return nullptr;
}

// A short read that a test asks for stays on a sector's border, as the real ones of direct files do.
unsigned ReadQueue::length(const Read* read, ReadFault fault) const {
  const uint64_t left = std::min(read->bytes - read->got, kPiece);
  if (fault == ReadFault::kShort && left > kSector) return static_cast<unsigned>(left / 2 / kSector * kSector + kSector);
  return static_cast<unsigned>(left);
}

bool ReadQueue::settle(Read* read, int64_t result) {
  if (result == -EINTR || result == -EAGAIN) return true;
  if (result < 0) {
    finish(read, static_cast<int>(-result));
    return false;
  }
  read->got += static_cast<uint64_t>(result);
  counters_->add(kReads), counters_->add(kReadBytes, static_cast<uint64_t>(result));
  if (read->got >= read->need) {
    finish(read, 0);
    return false;
  }
  if (result == 0) finish(read, kTruncated);
  return result != 0;
}

void ReadQueue::finish(Read* read, int error) {
  if (error != 0) counters_->add(kReadErrors);
  read->done(read, error);
}

void ReadQueue::run_thread() {
  for (;;) {
    Read* read;
    {
      std::unique_lock<std::mutex> lock(lock_);
      some_.wait(lock, [&] { return stop_ || !urgent_.empty() || !ahead_.empty(); });
      if (stop_) return;
      read = next();
    }
    for (bool more = true; more;) {
      const ReadFault fault = planted();
      if (fault == ReadFault::kHang) {
        const std::lock_guard<std::mutex> lock(lock_);
        hanging_.push_back(read);
        break;
      }
      int64_t result = fault == ReadFault::kError ? -EIO : 0;
      if (fault != ReadFault::kError && fault != ReadFault::kTruncated) {
        result = pread(read->fd, read->to + read->got, length(read, fault), static_cast<off_t>(read->offset + read->got));
        if (result < 0) result = -errno;
      }
      more = settle(read, result);
    }
  }
}

// Requests for what waits, as many as the ring takes; planted failures are finished at once. Returns how many were queued.
unsigned ReadQueue::feed(Uring& ring) {
  std::vector<std::pair<Read*, int>> failed;
  unsigned queued = 0;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    while (!stop_ && ring.free() > 0) {
      Read* read = next();
      if (read == nullptr) break;
      const ReadFault fault = planted();
      if (fault == ReadFault::kHang) {
        hanging_.push_back(read);
      } else if (fault == ReadFault::kError || fault == ReadFault::kTruncated) {
        failed.emplace_back(read, fault == ReadFault::kError ? EIO : kTruncated);
      } else {
        ring.read(read->fd, read->offset + read->got, read->to + read->got, length(read, fault),
                  reinterpret_cast<uint64_t>(read));
        ++queued;
      }
    }
  }
  for (const auto& [read, error] : failed) finish(read, error);
  return queued;
}

void ReadQueue::answered(Read* read, int result) {
  if (!settle(read, result)) return;
  const std::lock_guard<std::mutex> lock(lock_);
  urgent_.push_front(read);
}

bool ReadQueue::stopping() {
  const std::lock_guard<std::mutex> lock(lock_);
  return stop_;
}

// The event's read is a request of the ring like the others, so that one wait serves both.
void ReadQueue::run_uring(unsigned depth) {
  Uring ring(depth + 1);
  uint64_t counted = 0;
  bool listening = false;
  unsigned inside = 0;
  while (!stopping() || inside > 0) {
    if (!listening) ring.read(event_, 0, &counted, sizeof counted, 0), listening = true;
    inside += feed(ring);
    if (!ring.enter(1)) return;
    uint64_t tag;
    int result;
    while (ring.pop(&tag, &result)) {
      if (tag == 0) {
        listening = false;
      } else {
        --inside;
        answered(reinterpret_cast<Read*>(tag), result);
      }
    }
  }
  // The ring may not end while the event's read can still write to `counted`.
  const uint64_t one = 1;
  if (listening && write(event_, &one, sizeof one) == sizeof one) ring.enter(1);
}

}  // namespace strata::tiers
