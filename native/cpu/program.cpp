#include "cpu/program.h"

#include <algorithm>
#include <stdexcept>

#include "cpu/dispatch.h"

namespace strata {

namespace {

void check_count(const std::string& kind, const char* what, int expected, size_t given) {
  if (given == static_cast<size_t>(expected)) return;
  throw std::invalid_argument("kernel '" + kind + "' takes " + std::to_string(expected) + " " + what + ", given " +
                              std::to_string(given));
}

struct Replay {
  ThreadPool& pool;
  const Op *begin, *end;

  static void run(void* context, int thread) {
    const Replay& replay = *static_cast<const Replay*>(context);
    const int threads = replay.pool.size();
    for (const Op* op = replay.begin; op != replay.end; ++op) {
      if (op != replay.begin) replay.pool.barrier();
      op->run(*op, thread, threads);
    }
  }
};

}  // namespace

void Program::add(const std::string& kind, const std::vector<uint64_t>& ptrs, const std::vector<int64_t>& dims,
                  const std::vector<float>& scalars) {
  const KernelEntry* kernel = find_kernel(kind);
  if (kernel == nullptr) throw std::invalid_argument("no kernel is named '" + kind + "'");
  check_count(kind, "pointers", kernel->ptrs, ptrs.size());
  check_count(kind, "dims", kernel->dims, dims.size());
  check_count(kind, "scalars", kernel->scalars, scalars.size());
  const std::lock_guard<std::mutex> lock(running_);
  Op op{};
  op.run = kernel->run;
  op.faults = &faults_;
  std::copy(ptrs.begin(), ptrs.end(), op.ptr);
  std::copy(dims.begin(), dims.end(), op.dim);
  std::copy(scalars.begin(), scalars.end(), op.scalar);
  ops_.push_back(op);
}

void Program::add_object(Kernel run, void* object) {
  const std::lock_guard<std::mutex> lock(running_);
  Op op{};
  op.run = run;
  op.faults = &faults_;
  op.ptr[0] = reinterpret_cast<uint64_t>(object);
  ops_.push_back(op);
}

uint32_t Program::run(int64_t begin, int64_t end) {
  const std::lock_guard<std::mutex> lock(running_);
  if (begin < 0 || begin > end || end > size())
    throw std::out_of_range("records " + std::to_string(begin) + " to " + std::to_string(end) + " of a program of " +
                            std::to_string(size()));
  faults_.store(0, std::memory_order_relaxed);
  Replay replay{*pool_, ops_.data() + begin, ops_.data() + end};
  pool_->run(Replay::run, &replay);
  return faults_.load(std::memory_order_relaxed);
}

}  // namespace strata
