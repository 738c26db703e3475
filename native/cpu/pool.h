// The threads that run programs.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "cpu/barrier.h"

namespace strata {

// `threads` threads, the caller of run() being thread 0. With `cpus`, worker i is bound to cpus[i]; the caller's own
// binding (cpus[0]) is left to whoever owns that thread. Workers spin briefly after a run, then sleep.
class ThreadPool {
 public:
  using Job = void (*)(void* context, int thread);

  ThreadPool(int threads, const std::vector<int>& cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Calls job(context, thread) once on every thread, in the contract's float mode; returns when all have returned.
  // One run at a time: others wait. Jobs must not throw. std::runtime_error in a forked child, which has no workers.
  void run(Job job, void* context);

  // Between two parts of a job: returns when every thread of the pool has called it.
  void barrier() { barrier_.wait(); }

 private:
  void work(int thread);
  void bind(const std::vector<int>& cpus);
  void stop();

  const int threads_;
  const pid_t owner_;
  std::mutex running_;
  Job job_ = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  Barrier barrier_;
  alignas(64) std::atomic<uint32_t> runs_{0};
  std::vector<std::thread> workers_;
};

}  // namespace strata
