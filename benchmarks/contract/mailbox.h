// What the GPU and the CPU workers of the layer experiment share in mapped memory. The plan of a layer is on the device.
//
// A layer's mailbox is written by one thread block: activations and the list first, then `posted` = step with release at
// system scope. A worker that reads that step with acquire sees the rest. It writes a row, then `done[rank]` = step, the
// same way back. Steps count from 1 and never repeat, so nothing is reset.
#pragma once

#include "strata/contract.h"

namespace strata {

constexpr int kHidden = 2560, kExpertWidth = 640, kExperts = 512, kTop = 10;
constexpr int kGateBytes = kExpertWidth * kHidden / 256 * 98;  // IQ3_XXS; up is as large
constexpr int kDownBytes = kHidden * kExpertWidth / 64 * 18;   // Q2_0
constexpr int kExpertBytes = 2 * kGateBytes + kDownBytes;

struct Mailbox {
  uint32_t posted;
  int32_t count;
  int32_t rank[kTop], expert[kTop];
  uint32_t done[kTop];
  uint32_t pad[64 - 2 - 3 * kTop];
  alignas(64) int8_t q[kHidden];
  alignas(64) float d[kHidden / 32];
  alignas(64) int16_t sums[kHidden / 16];
  alignas(64) float rows[kTop][kHidden];
};

enum ExpertPlace : int32_t { kResident = 0, kCopied = 1, kOnCpu = 2 };

struct PlanEntry {
  uint64_t address;  // of the packed expert on the device
  uint64_t source;   // in page-locked memory, for a copy
  int32_t place, expert;
  float weight;
  int32_t pad;
};

}  // namespace strata
