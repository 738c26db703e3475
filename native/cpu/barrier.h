// Waiting that costs nothing when short and little when long.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>

namespace strata {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until `word` differs from `old`: `pauses` pause instructions, then `yields` turns given to other threads (more
// threads than processors must not wait for a whole time slice), then sleep until notified.
inline void wait_change(const std::atomic<uint32_t>& word, uint32_t old, int pauses, int yields) {
  for (int i = 0; i < pauses; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    pause_cpu();
  }
  for (int i = 0; i < yields; ++i) {
    if (word.load(std::memory_order_acquire) != old) return;
    sched_yield();
  }
  word.wait(old, std::memory_order_acquire);
}

// Sense-reversing barrier: the phase number is the sense.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  void wait() {
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) return wait_change(phase_, phase, 256, 64);
    arrived_.store(0, std::memory_order_relaxed);
    // Not release: libstdc++'s notify reads its count of sleepers without a fence, and a plain store may pass that read.
    phase_.store(phase + 1, std::memory_order_seq_cst);
    phase_.notify_all();
  }

 private:
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

}  // namespace strata
