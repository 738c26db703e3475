// Whole experts from RAM to slots or places of the staging ring. Macros: STRATA_TYPE, STRATA_UP, STRATA_DOWN (formats of the
// planes), STRATA_PACKED (bits: planes that are re-laid).
#pragma once

#include "op.cuh"
#include "pack_tile.cuh"
#include "strata/tiers_gpu.h"

namespace strata {

struct PlaneBytes {
  int gate, up, down;
};

using GateCopy = TileCopy<STRATA_TYPE, (STRATA_PACKED & 1) != 0>;
using UpCopy = TileCopy<STRATA_UP, (STRATA_PACKED & 2) != 0>;
using DownCopy = TileCopy<STRATA_DOWN, (STRATA_PACKED & 4) != 0>;

// A tile of one of an expert's planes.
struct Tile {
  int plane, tile, bytes;  // of the plane

  __device__ __forceinline__ Tile(int t, const PlaneBytes& b) {
    const int gate = GateCopy::tiles(b.gate), up = UpCopy::tiles(b.up);
    plane = t < gate ? 0 : t < gate + up ? 1 : 2;
    tile = t - (plane == 0 ? 0 : plane == 1 ? gate : gate + up);
    bytes = plane == 0 ? b.gate : plane == 1 ? b.up : b.down;
  }
  static __device__ __forceinline__ int count(const PlaneBytes& b) {
    return GateCopy::tiles(b.gate) + UpCopy::tiles(b.up) + DownCopy::tiles(b.down);
  }
  __device__ __forceinline__ int size() const {
    const int each = plane == 0 ? GateCopy::kBytes : plane == 1 ? UpCopy::kBytes : DownCopy::kBytes;
    return min(each, bytes - tile * each);
  }
  __device__ __forceinline__ int load(uint64_t from, int thread, uint4 (&word)[kTileWords]) const {
    if (plane == 0) return GateCopy::load(from, bytes, tile, thread, word);
    if (plane == 1) return UpCopy::load(from, bytes, tile, thread, word);
    return DownCopy::load(from, bytes, tile, thread, word);
  }
  __device__ __forceinline__ void store(const uint8_t* tile_bytes, uint64_t to, uint8_t* room, TileThreads& threads) const {
    uint8_t* target = reinterpret_cast<uint8_t*>(to);
    if (plane == 0) return GateCopy::store(tile_bytes, bytes, tile, target, room, threads);
    if (plane == 1) return UpCopy::store(tile_bytes, bytes, tile, target, room, threads);
    DownCopy::store(tile_bytes, bytes, tile, target, room, threads);
  }
};

// Waits until the link, at the rate that it is held to, has carried `bytes` more. One thread.
__device__ __forceinline__ void pace(tiers::TierState* state, int bytes) {
  const float ns_byte = state->settings.link_ns_byte;
  if (ns_byte <= 0.0f) return;
  const unsigned long long ns = static_cast<unsigned long long>(ns_byte * static_cast<float>(bytes));
  unsigned long long* link = reinterpret_cast<unsigned long long*>(&state->link_free);
  unsigned long long old = *reinterpret_cast<volatile unsigned long long*>(link), free_at, seen;
  for (;; old = seen) {
    const unsigned long long now = global_timer();
    free_at = (old > now ? old : now) + ns;
    seen = atomicCAS(link, old, free_at);
    if (seen == old) break;
  }
  while (global_timer() < free_at) {
  }
}

// What `threads` need of shared memory.
struct TileSpace {
  alignas(16) uint4 words[kTileRoom / 16];
  alignas(16) uint8_t room[kTileRoom];
};

// Tiles [first, total) in steps of `step`, every expert's one after another. from(i, plane), to(i, plane): where expert i's
// plane lies and goes. While a tile is stored the next one is on its way.
template <class From, class To>
__device__ __forceinline__ void copy_tiles(TileSpace& space, TileThreads threads, int first, int step, int experts, const PlaneBytes& bytes,
                                           tiers::TierState* state, From from, To to) {
  const int each = Tile::count(bytes), total = experts * each;
  uint4 word[kTileWords] = {};
  int shift = 0;
  const auto fetch = [&](int t) {
    const Tile tile(t % each, bytes);
    shift = tile.load(from(t / each, tile.plane), threads.own(), word);
  };
  if (first < total) fetch(first);
  for (int t = first; t < total; t += step) {
#pragma unroll
    for (int i = 0; i < kTileWords; ++i) space.words[threads.own() + i * kTileThreads] = word[i];
    const int behind = shift;
    threads.meet();
    if (t + step < total) fetch(t + step);
    const Tile tile(t % each, bytes);
    tile.store(reinterpret_cast<const uint8_t*>(space.words) + behind, to(t / each, tile.plane), space.room, threads);
    if (threads.own() == 0) pace(state, tile.size());
    threads.meet();
  }
}

// The same by thread blocks of kTileThreads.
template <class From, class To>
__device__ __forceinline__ void copy_experts(int first, int step, int experts, const PlaneBytes& bytes, tiers::TierState* state, From from,
                                             To to) {
  __shared__ TileSpace space;
  copy_tiles(space, TileThreads(), first, step, experts, bytes, state, from, to);
}

}  // namespace strata
