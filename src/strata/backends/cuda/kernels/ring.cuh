// A ring of stages in shared memory between threads that fill it and threads that read it.
#pragma once

#include "device.cuh"

namespace strata {

// Count stages of Bytes, a multiple of 1,024, from a border of 1,024 bytes on.
template <int Count, int Bytes> struct Ring {
  static constexpr int kSharedBytes = 2048 + Count * Bytes;

  // Where a side stands.
  struct At {
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next() {
      if (++slot == Count) slot = 0, parity ^= 1;
    }
  };

  Barrier *full, *empty;  // a stage's
  uint8_t* base;

  // A stage is full after `filled` arrivals, and empty after `emptied`. All threads; a barrier of the thread block must follow.
  __device__ __forceinline__ Ring(uint8_t* shared, int filled, int emptied) : full(reinterpret_cast<Barrier*>(shared)), empty(full + Count) {
    static_assert(Bytes % 1024 == 0);
    base = shared + 1024 + (1024 - shared_offset(shared) % 1024) % 1024;
    if (threadIdx.x < Count) full[threadIdx.x].init(filled), empty[threadIdx.x].init(emptied);
  }
  __device__ __forceinline__ uint8_t* stage(const At& at) const { return base + at.slot * Bytes; }

  __device__ __forceinline__ void wait_empty(const At& at) const { empty[at.slot].wait(at.parity ^ 1); }
  __device__ __forceinline__ void wait_full(const At& at) const { full[at.slot].wait(at.parity); }
  // What this thread brought is there, for the tensor cores too.
  __device__ __forceinline__ void fill(const At& at) const {
    publish_shared();
    full[at.slot].arrive();
  }
  // This thread has read the stage. Every thread says so for itself: one for its warp would do, but racecheck does not follow that.
  __device__ __forceinline__ void release(const At& at) const { empty[at.slot].arrive(); }
};

}  // namespace strata
