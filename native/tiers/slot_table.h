// What the policy moves experts with, whoever computes the steps.
#pragma once
#include <cstdint>
#include <vector>

#include "strata/tiers.h"

namespace strata::tiers {

struct Counters;

// The host's side of residency; every method may be called from any thread.
class SlotTable {
 public:
  virtual ~SlotTable() = default;
  // Begins to bring an expert into a free slot. False, and nothing happens, when the slot is not free or too small, or
  // the expert is resident, arriving or named wrongly.
  virtual bool promote(int32_t layer, int32_t expert, uint32_t slot) = 0;
  // Brings an expert into the slot of a resident one, which leaves at the same moment. False, and nothing happens, where
  // that cannot be, or a slot must be left before another expert may come.
  virtual bool replace(int32_t, int32_t, uint32_t) { return false; }
  virtual bool replaces() const { return false; }  // whether it ever can
  // Takes an expert out of the table at the next step's begin, or calls its arrival off where that is still possible.
  virtual bool retire(int32_t layer, int32_t expert) = 0;
  virtual int32_t slot_of(int32_t layer, int32_t expert) const = 0;  // -1: absent
  virtual uint32_t state(uint32_t slot) const = 0;
  virtual std::vector<Slot> slots() const = 0;  // a copy
  virtual size_t moving() const = 0;            // slots whose bytes are still on their way
  virtual int32_t num_layers() const = 0;
  virtual int32_t num_experts() const = 0;
  virtual uint64_t expert_bytes(int32_t layer) const = 0;
  virtual uint32_t ended() const = 0;  // the last epoch that is over, as far as is known
  // Whether experts of a layer may change places soon; where not, what is asked for waits, and all that is asked for later.
  virtual bool may_move(int32_t) const { return true; }
};

// A device whose experts the policy may move.
class PolicyDevice {
 public:
  virtual ~PolicyDevice() = default;
  virtual SlotTable& slot_table() = 0;
  virtual const RouteRing& routes() const = 0;
  virtual Counters& counters() = 0;  // brought up to date
};

}  // namespace strata::tiers
