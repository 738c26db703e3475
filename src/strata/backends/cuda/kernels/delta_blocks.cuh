// What delta_prepare.cu leaves for delta_pass.cu, of one block of 64 rows: docs/cuda-prompts.md has the formulas.
#pragma once

#include "delta.cuh"
#include "tensor.cuh"

namespace strata {

#ifndef STRATA_VALUE_DIM
#define STRATA_VALUE_DIM 128
#endif

constexpr int kChunk = 64, kRowTiles = kChunk / 16;  // ops/step.py CHUNK_BLOCK
constexpr int kValueDim = STRATA_VALUE_DIM, kKeySteps = kKeyDim / 16, kValueTiles = kValueDim / 8;

// A matrix [64][key_dim] in the order in which lanes hold it as the left side of a product: hi and lo next to one another.
struct LeftTiles {
  uint4* at;

  static constexpr size_t kSize = static_cast<size_t>(kRowTiles) * kKeySteps * 32 * 2;
  __device__ __forceinline__ uint4* place(int tile, int step) const { return at + ((tile * kKeySteps + step) * 32 + lane_id()) * 2; }
};

// Of one block and value head. d = u + w S are the corrections of 64 rows, S the state before them; q S is what rows read of it.
struct HeadBlock {
  LeftTiles w, q;
  float4* u;    // [row tiles][value tiles][32]: a lane's sums of a tile
  float* left;  // [64] decay from a row to the block's end, then that of the whole block, then a bound of |u|

  static constexpr size_t kBytes = 2 * LeftTiles::kSize * 16 + static_cast<size_t>(kChunk) * kValueDim * 4 + 4 * (kChunk + 32);
  __device__ __forceinline__ HeadBlock(uint8_t* scratch, int block, int heads, int h) {
    uint8_t* base = scratch + (static_cast<size_t>(block) * heads + h) * kBytes;
    w.at = reinterpret_cast<uint4*>(base), q.at = w.at + LeftTiles::kSize;
    u = reinterpret_cast<float4*>(q.at + LeftTiles::kSize);
    left = reinterpret_cast<float*>(u + static_cast<size_t>(kChunk) * kValueDim / 4);
  }
  __device__ __forceinline__ float4* sums(int tile, int n) const { return u + (tile * kValueTiles + n) * 32 + lane_id(); }
};

// What is bounded by 1 where keys have unit length (keys, queries, the inverse, w, q: corrections are contractions) becomes halves times
// kUnit; products of two such are kUnit^2 times too large.
constexpr float kUnit = 256.0f, kUnitInverse = 1.0f / kUnit;
__device__ __forceinline__ Pair unit_parts(float x, float y) { return f16_parts(kUnit * x, kUnit * y); }

// Keys of a block and key head, halves [64][hi, lo][key_dim].
__device__ __forceinline__ uint16_t* block_keys(uint16_t* keys, int block, int key_heads, int head) {
  return keys + (static_cast<size_t>(block) * key_heads + head) * kChunk * 2 * kKeyDim;
}

}  // namespace strata
