// One record of a program, and what a kernel may report.
#pragma once
#include <atomic>
#include <cstdint>

namespace strata {

struct Op;
using Kernel = void (*)(const Op&, int thread, int threads);

// Bits that a kernel sets when a step's result is void; Program::run returns them.
enum Fault : uint32_t {
  kFaultNone = 0,
  kFaultNonFinite = 1,  // infinity or NaN where the contract needs a finite value
  kFaultRange = 2,      // token, position, row, page or type id outside its table
  kFaultNoToken = 4,    // a token mask that leaves nothing to sample
  kFaultMemory = 8,     // a thread could not get scratch memory
};
constexpr int kTierFaultShift = 4;  // the faults of strata/tiers.h come after these

// Addresses, sizes and constants, in the order that the kernel's file documents.
struct Op {
  Kernel run;
  uint64_t ptr[16];
  int64_t dim[16];
  float scalar[8];
  std::atomic<uint32_t>* faults;  // the program's, so that a kernel needs nothing global

  // Always inlined: a shared copy of these would be compiled for one instruction set and used by all.
  template <class T>
  __attribute__((always_inline)) T* at(int i) const {
    return reinterpret_cast<T*>(ptr[i]);
  }
  __attribute__((always_inline)) void fault(Fault bit) const {
    if (bit != kFaultNone) faults->fetch_or(bit, std::memory_order_relaxed);
  }
};

struct KernelEntry {
  const char* name;
  Kernel run;
  int ptrs, dims, scalars;
};

// Every kernel of one instruction set.
struct KernelTable {
  const char* level;
  const KernelEntry* entries;
  int count;
};

}  // namespace strata
