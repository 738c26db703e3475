// File blocks on their way from RAM to planes: a thread block takes a tile of them through shared memory, so that both
// sides move whole lines. Pack<T> (pack.cuh) says which byte goes where; formats that many files have do it by words.
#pragma once

#include "pack.cuh"

namespace strata {

constexpr int kTileThreads = 256, kTileRoom = 8192;  // bytes of a tile with what alignment adds
constexpr int kTileWords = kTileRoom / 16 / kTileThreads;

// Those threads of a thread block that take a tile together: all of it, or, where there is a barrier for them, so many of several groups.
struct TileThreads {
  Barrier* barrier;
  uint32_t parity = 0;

  __device__ __forceinline__ explicit TileThreads(Barrier* barrier_ = nullptr) : barrier(barrier_) {}
  __device__ __forceinline__ int own() const { return static_cast<int>(threadIdx.x) % kTileThreads; }
  __device__ __forceinline__ void meet() {
    if (barrier == nullptr) return __syncthreads();
    barrier->arrive();
    barrier->wait(parity);
    parity ^= 1;
  }
};

// 16 bytes of page-locked RAM, which nobody writes while they are read.
__device__ __forceinline__ uint4 load_far(const uint4* p) { return *p; }

__device__ __forceinline__ uint32_t load_halves(const uint8_t* p) {
  const uint16_t* h = reinterpret_cast<const uint16_t*>(p);
  return h[0] | static_cast<uint32_t>(h[1]) << 16;
}

// Blocks [first, first + count) of a matrix of `blocks`, at `from` in shared memory, to the planes at `to`; `room`: as
// much shared memory again.
template <QuantType T> struct PackTile {
  static __device__ __forceinline__ void run(const uint8_t* from, int first, int count, size_t blocks, uint8_t* to, uint8_t* room, TileThreads& threads) {
    using P = Pack<T>;
    for (int b = threads.own(); b < count; b += kTileThreads) {
      uint8_t *at[4], *plane = room;
      for (int p = 0; p < 4; ++p) at[p] = plane + b * P::plane[p], plane += count * P::plane[p];
      P::block(from + b * Layout<T>::bytes, at);
    }
    threads.meet();
    const uint8_t* plane = room;
    for (int p = 0; p < 4; ++p) {
      uint8_t* target = to + static_cast<size_t>(first) * P::plane[p];
      const int bytes = count * P::plane[p];
      if (((reinterpret_cast<size_t>(target) | reinterpret_cast<size_t>(plane) | bytes) & 3) == 0) {
        for (int i = threads.own(); i < bytes / 4; i += kTileThreads)
          reinterpret_cast<uint32_t*>(target)[i] = reinterpret_cast<const uint32_t*>(plane)[i];
      } else {
        for (int i = threads.own(); i < bytes; i += kTileThreads) target[i] = plane[i];
      }
      plane += bytes, to += blocks * P::plane[p];
    }
  }
};

// Words of a plane whose bytes lie together in a file block, at `begin`, `words` of them; `turn` changes each.
template <int kBytes, int kWords, class Turn>
__device__ __forceinline__ void pack_words(const uint8_t* from, int begin, int first, int count, uint8_t* to, int thread, Turn turn) {
  uint32_t* target = reinterpret_cast<uint32_t*>(to) + static_cast<size_t>(first) * kWords;
  for (int i = thread; i < count * kWords; i += kTileThreads) target[i] = turn(load_halves(from + i / kWords * kBytes + begin + i % kWords * 4));
}

__device__ __forceinline__ void pack_halves(const uint8_t* from, int bytes, int first, int count, uint8_t* to, int thread) {
  uint16_t* target = reinterpret_cast<uint16_t*>(to) + first;
  for (int i = thread; i < count; i += kTileThreads) target[i] = *reinterpret_cast<const uint16_t*>(from + i * bytes);
}

template <> struct PackTile<QuantType::IQ3_XXS> {
  static __device__ __forceinline__ void run(const uint8_t* from, int first, int count, size_t blocks, uint8_t* to, uint8_t*, const TileThreads& threads) {
    const auto same = [](uint32_t v) { return v; };
    pack_words<98, 16>(from, 2, first, count, to, threads.own(), same);
    pack_words<98, 8>(from, 66, first, count, to + blocks * 64, threads.own(), same);
    pack_halves(from, 98, first, count, to + blocks * 96, threads.own());
  }
};

template <> struct PackTile<QuantType::Q2_0> {
  static __device__ __forceinline__ void run(const uint8_t* from, int first, int count, size_t blocks, uint8_t* to, uint8_t*, const TileThreads& threads) {
    pack_words<18, 4>(from, 2, first, count, to, threads.own(), [](uint32_t v) {  // value 4 a + b of 16 becomes value 4 b + a
      uint32_t t = (v ^ v >> 6) & 0x00cc00ccu;
      v ^= t ^ t << 6;
      t = (v ^ v >> 12) & 0x0000f0f0u;
      return v ^ t ^ t << 12;
    });
    pack_halves(from, 18, first, count, to + blocks * 16, threads.own());
  }
};

// A plane of `bytes` bytes at `from` in RAM, in tiles; kPacked: re-laid, else as it is.
template <QuantType T, bool kPacked> struct TileCopy {
  static constexpr int unit() {
    if constexpr (kPacked) return Layout<T>::bytes;
    return 16;
  }
  static constexpr int kUnits = (kTileRoom - 16) / unit() / 16 * 16, kBytes = kUnits * unit();
  static_assert(kUnits > 0);

  static __device__ __forceinline__ int tiles(int bytes) { return (bytes + kBytes - 1) / kBytes; }

  // The tile's bytes to registers: a thread's words, and how far the first byte lies behind a border of 16.
  static __device__ __forceinline__ int load(uint64_t from, int bytes, int tile, int thread, uint4 (&word)[kTileWords]) {
    const uint64_t at = from + static_cast<uint64_t>(tile) * kBytes;
    const int shift = static_cast<int>(at & 15), count = (shift + min(kBytes, bytes - tile * kBytes) + 15) / 16;
    const uint4* words = reinterpret_cast<const uint4*>(at - shift);
#pragma unroll
    for (int i = 0; i < kTileWords; ++i) {
      const int w = thread + i * kTileThreads;
      if (w < count) word[i] = load_far(words + w);
    }
    return shift;
  }

  static __device__ __forceinline__ void store(const uint8_t* tile_bytes, int bytes, int tile, uint8_t* to, uint8_t* room, TileThreads& threads) {
    if constexpr (kPacked) {
      const int blocks = bytes / unit(), first = tile * kUnits;
      PackTile<T>::run(tile_bytes, first, min(kUnits, blocks - first), static_cast<size_t>(blocks), to, room, threads);
    } else {
      const int first = tile * kBytes, count = min(kBytes, bytes - first);
      if ((reinterpret_cast<size_t>(tile_bytes) & 3) == 0 && count % 4 == 0) {
        for (int i = threads.own(); i < count / 4; i += kTileThreads)
          reinterpret_cast<uint32_t*>(to + first)[i] = reinterpret_cast<const uint32_t*>(tile_bytes)[i];
      } else {
        for (int i = threads.own(); i < count; i += kTileThreads) to[first + i] = tile_bytes[i];
      }
    }
  }
};

}  // namespace strata
