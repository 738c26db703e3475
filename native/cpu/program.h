// A lowered step: op records in order, replayed by one call.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cpu/op.h"
#include "cpu/pool.h"

namespace strata {

// Records keep addresses; whoever builds the program keeps what they point to alive and large enough.
class Program {
 public:
  explicit Program(std::shared_ptr<ThreadPool> pool) : pool_(std::move(pool)) {}

  // Appends a record for the active instruction set. std::invalid_argument when the kernel is unknown or a count is
  // not the one it declares.
  void add(const std::string& kind, const std::vector<uint64_t>& ptrs, const std::vector<int64_t>& dims,
           const std::vector<float>& scalars);

  // Appends a record of a tier: `run` with the address of its object. The caller keeps the object alive.
  void add_object(Kernel run, void* object);

  // Runs records [begin, end) with a barrier after each; returns the fault bits set. std::out_of_range on a bad range.
  uint32_t run(int64_t begin, int64_t end);

  int64_t size() const { return static_cast<int64_t>(ops_.size()); }

 private:
  std::shared_ptr<ThreadPool> pool_;
  std::vector<Op> ops_;
  std::mutex running_;
  std::atomic<uint32_t> faults_{0};
};

}  // namespace strata
