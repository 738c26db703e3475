#include "cpu/pool.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "cpu/float_mode.h"

namespace strata {

namespace {
constexpr int kMaxThreads = 1024;
constexpr int kIdlePauses = 4096;  // about 100 microseconds: the gap between the forward and the sample replay
constexpr int kIdleYields = 16;
}  // namespace

ThreadPool::ThreadPool(int threads, const std::vector<int>& cpus)
    : threads_(threads), owner_(getpid()), barrier_(threads) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::invalid_argument("a pool takes 1 to 1024 threads, given " + std::to_string(threads));
  if (!cpus.empty() && static_cast<int>(cpus.size()) != threads)
    throw std::invalid_argument("a pool of " + std::to_string(threads) + " threads needs as many processors, given " +
                                std::to_string(cpus.size()));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    if (!cpus.empty()) bind(cpus);
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (getpid() == owner_)
    stop();
  else  // a forked child has no workers to join: their handles are left behind on purpose
    new std::vector<std::thread>(std::move(workers_));
}

void ThreadPool::bind(const std::vector<int>& cpus) {
  for (int i = 1; i < threads_; ++i) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (cpus[i] >= 0 && cpus[i] < CPU_SETSIZE) CPU_SET(cpus[i], &set);
    if (pthread_setaffinity_np(workers_[i - 1].native_handle(), sizeof(set), &set) != 0)
      throw std::invalid_argument("cannot bind thread " + std::to_string(i) + " to processor " +
                                  std::to_string(cpus[i]));
  }
}

void ThreadPool::stop() {
  stopping_ = true;
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::work(int thread) {
  const FloatMode mode;
  for (uint32_t seen = 0;; ++seen) {
    wait_change(runs_, seen, kIdlePauses, kIdleYields);
    if (stopping_) return;
    job_(context_, thread);
    barrier();
  }
}

void ThreadPool::run(Job job, void* context) {
  if (getpid() != owner_)
    throw std::runtime_error("a thread pool cannot be used in a forked child; make a new one there");
  const std::lock_guard<std::mutex> lock(running_);
  const FloatMode mode;
  job_ = job;
  context_ = context;
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  job(context, 0);
  barrier();
}

}  // namespace strata
