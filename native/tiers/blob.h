// How an expert lies in a VRAM slot or a staging place: gate, up, down, each on a line of 64 bytes.
#pragma once
#include "tiers/store.h"

namespace strata::tiers {

struct Blob {
  uint64_t offset[kPlanes], bytes;

  explicit Blob(const LayerSource& layer) : bytes(0) {
    for (int p = 0; p < kPlanes; ++p) offset[p] = bytes, bytes += line_up(layer.planes[p].bytes);
  }
};

}  // namespace strata::tiers
