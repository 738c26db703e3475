#include "tiers/memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <new>
#include <thread>
#include <vector>

namespace strata::tiers {

namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kLockStep = uint64_t{64} << 20;
constexpr uint64_t kPage = 4096, kTouchers = 8;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE of linux/mman.h
constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
constexpr int kMaxNodes = 64;
std::atomic<uint64_t> allowed{UINT64_MAX}, lockable{UINT64_MAX};

// Nodes that have memory, as a mask: /sys/devices/system/node/has_memory holds a list like 0-1,3.
uint64_t memory_nodes() {
  FILE* file = fopen("/sys/devices/system/node/has_memory", "r");
  if (file == nullptr) return 1;
  uint64_t mask = 0;
  int first, last;
  char next = ',';
  while (next == ',' && fscanf(file, "%d", &first) == 1) {
    last = first;
    if (fscanf(file, "%c", &next) != 1) next = '\n';
    if (next == '-' && (fscanf(file, "%d", &last) != 1 || fscanf(file, "%c", &next) != 1)) next = '\n';
    for (int i = first; i <= last && i < kMaxNodes; ++i) mask |= uint64_t{1} << i;
  }
  fclose(file);
  return mask == 0 ? 1 : mask;
}

}  // namespace

TierMemory::TierMemory(uint64_t bytes, bool lock) : bytes_(bytes) {
  if (bytes > allowed.load() || bytes > UINT64_MAX - 2 * kHugePage) throw std::bad_alloc();
  mapped_ = std::max<uint64_t>(bytes, 1) + kHugePage;
  void* map = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<uint8_t*>(map);
  data_ = map_ + (kHugePage - reinterpret_cast<uint64_t>(map_) % kHugePage) % kHugePage;
  madvise(data_, bytes_, MADV_HUGEPAGE);  // advice: refusal costs speed only
  spread();
  if (lock) lock_pages();
}

TierMemory::~TierMemory() { munmap(map_, mapped_); }

void TierMemory::limit(uint64_t bytes, uint64_t locked) { allowed.store(bytes), lockable.store(locked); }

void TierMemory::touch() {
  const uint64_t pages = (bytes_ + kHugePage - 1) / kHugePage;
  const uint64_t count = std::clamp<uint64_t>(std::min<uint64_t>(std::thread::hardware_concurrency(), pages), 1, kTouchers);
  std::atomic<bool> given{true};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < count; ++t)
    threads.emplace_back([this, &given, t, pages, count] {
      const uint64_t begin = pages * t / count * kHugePage, end = pages * (t + 1) / count * kHugePage;
      if (!touch_part(begin, std::min(end, bytes_))) given.store(false);
    });
  for (std::thread& thread : threads) thread.join();
  if (!given.load()) throw std::bad_alloc();
}

bool TierMemory::touch_part(uint64_t begin, uint64_t end) {
  if (begin >= end) return true;
  if (madvise(data_ + begin, end - begin, kPopulateWrite) == 0) return true;
  if (errno != EINVAL) return false;
  for (uint64_t at = begin; at < end; at += kPage) *static_cast<volatile uint8_t*>(data_ + at) = 0;  // before Linux 5.14
  return true;
}

void TierMemory::spread() {
  const uint64_t mask = memory_nodes();
  const int count = __builtin_popcountll(mask);
  if (count > 1 && syscall(SYS_mbind, data_, bytes_, kInterleave, &mask, kMaxNodes + 1, 0) == 0) nodes_ = count;
}

void TierMemory::lock_pages() {
  const uint64_t most = std::min(bytes_, lockable.load());
  while (locked_ < most) {
    const uint64_t step = std::min(kLockStep, most - locked_);
    if (mlock(data_ + locked_, step) != 0) return;
    locked_ += step;
  }
}

}  // namespace strata::tiers
