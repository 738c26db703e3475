// What a layer lacks for a prompt chunk, and the ring from where the chunk's products read it (backends/cuda/prompt_experts.py).
#pragma once

#include "device.cuh"

namespace strata {

// Of one layer, in device memory; the experts follow, int32 [num_experts]: those that are copied, then those that CPU workers
// compute (chunk_share.cu).
struct Absent {
  int32_t count, computed;
  uint64_t first;  // number of its first place, over the life of the ring

  __device__ __forceinline__ int32_t* experts() { return reinterpret_cast<int32_t*>(this + 1); }
};

// Fixed when the ring is made.
struct PromptRing {
  uint64_t base, place_bytes;
  uint64_t* taken;        // places handed out so far
  uint64_t* tables;       // [layers][3][experts] where the chunk's products read planes
  unsigned char* lists;   // [layers] of Absent, `list_bytes` apart
  uint64_t* counts;       // mapped: experts copied, their bytes
  uint32_t* used;         // [layers][experts] pairs that prompts gave each expert
  uint32_t places, list_bytes;

  __device__ __forceinline__ Absent* list(int layer) const {
    return reinterpret_cast<Absent*>(lists + static_cast<size_t>(layer) * list_bytes);
  }
  __device__ __forceinline__ uint64_t place(uint64_t n) const { return base + n % places * place_bytes; }
};

}  // namespace strata
