#include "tiers/row_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

namespace strata::tiers {

namespace {
constexpr int kFallbackThreads = 4;
}

RowReader::RowReader(int fd, int threads, Counters* counters)
    : fd_(fd), threads_(threads > 0 ? threads : kFallbackThreads), counters_(counters), buffers_(nullptr, free) {
  if (threads == 0) {
    ring_ = std::make_unique<Uring>(kDepth);
    if (!ring_->ok()) ring_.reset();
  }
  buffers_.reset(static_cast<uint8_t*>(aligned_alloc(4096, kDepth * kMostBytes)));
  if (!buffers_) throw std::bad_alloc();
}

void RowReader::inject(ReadFault fault, uint32_t after) {
  after_.store(after);
  fault_.store(static_cast<uint32_t>(fault));
}

// A planted result instead of the file's.
bool RowReader::planted(int64_t* result) {
  const ReadFault fault = static_cast<ReadFault>(fault_.load(std::memory_order_relaxed));
  if (fault == ReadFault::kNone || after_.fetch_sub(1) != 0) return false;
  if (fault == ReadFault::kShort) after_.store(0);
  *result = fault == ReadFault::kError ? -EIO : fault == ReadFault::kShort && *result > 1 ? *result / 2 : 0;
  return true;
}

int RowReader::read(const std::vector<SmallRead>& reads, const std::function<void(size_t, const uint8_t*)>& done) {
  counters_->add(kNgramReads, reads.size());
  return ring_ ? read_uring(reads, done) : read_threads(reads, done);
}

// Small reads are whole or the file's end: one that came short is made again, waiting, to learn which.
int64_t RowReader::blocking(const SmallRead& read, uint8_t* to) {
  uint64_t got = 0;
  while (got < read.need) {
    const int64_t n = pread(fd_, to + got, read.bytes - got, static_cast<off_t>(read.offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) break;
    got += static_cast<uint64_t>(n);
  }
  return static_cast<int64_t>(got);
}

int RowReader::read_uring(const std::vector<SmallRead>& reads, const std::function<void(size_t, const uint8_t*)>& done) {
  std::vector<uint32_t> free_buffers(kDepth);
  for (unsigned i = 0; i < kDepth; ++i) free_buffers[i] = i;
  size_t next = 0, left = reads.size(), inside = 0;
  int error = 0;
  while (left > 0) {
    for (; next < reads.size() && error == 0 && !free_buffers.empty(); ++next, ++inside) {
      const uint32_t b = free_buffers.back();
      free_buffers.pop_back();
      ring_->read(fd_, reads[next].offset, buffer(b), reads[next].bytes, static_cast<uint64_t>(next) << 32 | b);
    }
    if (inside == 0) return error;
    if (!ring_->enter(1)) return EIO;
    uint64_t tag;
    int result;
    while (ring_->pop(&tag, &result)) {
      const size_t i = tag >> 32;
      const uint32_t b = static_cast<uint32_t>(tag);
      int64_t got = result;
      const bool real = !planted(&got);
      if (real && got >= 0 && got < reads[i].need) got = blocking(reads[i], buffer(b));
      if (!real && got > 0) got = blocking(reads[i], buffer(b));  // a short read goes on
      if (got < 0 && error == 0) error = static_cast<int>(-got);
      if (got >= 0 && got < reads[i].need && error == 0) error = kTruncated;
      if (error == 0) done(i, buffer(b)), counters_->add(kNgramReadBytes, static_cast<uint64_t>(got));
      free_buffers.push_back(b);
      --inside, --left;
    }
    if (error != 0 && inside == 0) return error;
  }
  return error;
}

int RowReader::read_threads(const std::vector<SmallRead>& reads, const std::function<void(size_t, const uint8_t*)>& done) {
  std::atomic<size_t> next{0};
  std::atomic<int> error{0};
  std::mutex handing;
  const auto work = [&](size_t t) {
    for (size_t i; error.load() == 0 && (i = next.fetch_add(1)) < reads.size();) {
      int64_t got = 2;  // a planted short read gives half
      if (!planted(&got) || got > 0) got = blocking(reads[i], buffer(t));
      if (got < 0) error.store(static_cast<int>(-got));
      if (got >= 0 && got < reads[i].need) error.store(kTruncated);
      const std::lock_guard<std::mutex> hold(handing);
      if (error.load() == 0) done(i, buffer(t)), counters_->add(kNgramReadBytes, static_cast<uint64_t>(got));
    }
  };
  std::vector<std::thread> threads;
  const size_t count = std::min<size_t>(static_cast<size_t>(threads_), (reads.size() + 7) / 8);
  for (size_t t = 1; t < count; ++t) threads.emplace_back(work, t);
  work(0);
  for (std::thread& thread : threads) thread.join();
  return error.load();
}

}  // namespace strata::tiers
