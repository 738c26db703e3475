#include "tiers/residency.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace strata::tiers {

Residency::Residency(std::vector<uint64_t> bytes, int32_t num_experts, std::vector<Slot> slots, Link* link,
                     Counters* counters)
    : bytes_(std::move(bytes)),
      num_experts_(num_experts),
      table_(bytes_.size() * static_cast<size_t>(num_experts), 0),
      holder_(table_.size(), -1),
      slots_(std::move(slots)),
      changes_(slots_.size(), Change::kNone),
      link_(link),
      counters_(counters) {
  if (slots_.size() > kMaxSlots)
    throw std::invalid_argument(std::to_string(slots_.size()) + " expert slots; at most " + std::to_string(kMaxSlots));
  for (Slot& slot : slots_) slot.state = kFree, slot.epoch = 0, slot.layer = slot.expert = -1;
}

bool Residency::known(int32_t layer, int32_t expert) const {
  return layer >= 0 && layer < num_layers() && expert >= 0 && expert < num_experts_;
}

size_t Residency::index(int32_t layer, int32_t expert) const {
  return static_cast<size_t>(layer) * static_cast<size_t>(num_experts_) + static_cast<size_t>(expert);
}

bool Residency::promote(int32_t layer, int32_t expert, uint32_t slot) {
  uint64_t address;
  {
    const std::lock_guard<std::mutex> lock(lock_);
    if (!known(layer, expert) || slot >= slots_.size() || holder_[index(layer, expert)] >= 0) return false;
    Slot& s = slots_[slot];
    if (s.state != kFree || s.bytes < expert_bytes(layer)) return false;
    s.state = kArriving, s.epoch = epochs_.begun, s.layer = layer, s.expert = expert;
    holder_[index(layer, expert)] = static_cast<int32_t>(slot);
    address = s.address;
  }
  link_->copy(layer, expert, slot, address);
  return true;
}

bool Residency::retire(int32_t layer, int32_t expert) {
  const std::lock_guard<std::mutex> lock(lock_);
  if (!known(layer, expert) || holder_[index(layer, expert)] < 0) return false;
  const uint32_t slot = static_cast<uint32_t>(holder_[index(layer, expert)]);
  Change& change = changes_[slot];
  if (slots_[slot].state == kResident && change == Change::kNone) {
    waiting_.push_back(slot);
    change = Change::kRetire;
    return true;
  }
  if (slots_[slot].state != kArriving || change == Change::kCallOff) return false;
  change = Change::kCallOff;  // an arrival that already waits to be published stays in the list once
  return true;
}

void Residency::arrived(uint32_t slot, bool complete) {
  const std::lock_guard<std::mutex> lock(lock_);
  Change& change = changes_[slot];
  if (!complete || change == Change::kCallOff) {
    change = Change::kNone;
    return release(slots_[slot]);
  }
  change = Change::kPublish;
  waiting_.push_back(slot);
}

void Residency::release(Slot& slot) {
  holder_[index(slot.layer, slot.expert)] = -1;
  slot.state = kFree, slot.layer = slot.expert = -1;
}

// Called where no replay runs: the table may change.
void Residency::apply(uint32_t i) {
  Slot& slot = slots_[i];
  const Change change = changes_[i];
  changes_[i] = Change::kNone;
  if (change == Change::kCallOff) return release(slot);
  if (change == Change::kNone) return;
  const size_t at = index(slot.layer, slot.expert);
  if (change == Change::kPublish) {
    slot.state = kResident, slot.epoch = epochs_.begun + 1;
    table_[at] = make_entry(i, slot.epoch);
    counters_->add(kPromotions), counters_->add(kPromotionBytes, expert_bytes(slot.layer));
  } else {
    slot.state = kLeaving, slot.epoch = epochs_.begun;
    table_[at] = 0;
    counters_->add(kRetirements);
  }
}

uint32_t Residency::begin_step() {
  const std::lock_guard<std::mutex> lock(lock_);
  for (const uint32_t i : waiting_) apply(i);
  std::erase_if(waiting_, [&](uint32_t i) {
    Slot& slot = slots_[i];
    if (slot.state == kLeaving && static_cast<int32_t>(epochs_.ended - slot.epoch) >= 0) release(slot);
    return slot.state != kLeaving;
  });
  return ++epochs_.begun;
}

void Residency::end_step() {
  const std::lock_guard<std::mutex> lock(lock_);
  epochs_.ended = epochs_.begun;
}

int32_t Residency::slot_of(int32_t layer, int32_t expert) const {
  const std::lock_guard<std::mutex> lock(lock_);
  return known(layer, expert) ? entry_slot(table_[index(layer, expert)]) : -1;
}

size_t Residency::moving() const {
  const std::lock_guard<std::mutex> lock(lock_);
  size_t count = 0;
  for (size_t i = 0; i < slots_.size(); ++i)
    count += slots_[i].state == kArriving && std::find(waiting_.begin(), waiting_.end(), i) == waiting_.end();
  return count;
}

uint32_t Residency::state(uint32_t slot) const {
  const std::lock_guard<std::mutex> hold(lock_);
  return slots_[slot].state;
}

std::vector<Slot> Residency::slots() const {
  const std::lock_guard<std::mutex> lock(lock_);
  return slots_;
}

uint64_t RouteReader::read(std::vector<RouteRecord>& out) {
  const uint32_t written = load_acquire(&ring_->written);
  uint32_t count = written - next_;
  uint64_t lost = 0;
  // The writer may be at work on the slot after the newest record: one less than the capacity is safe to read.
  if (count >= ring_->capacity) lost = count - (ring_->capacity - 1), count = ring_->capacity - 1;
  next_ = written - count;
  const auto* records = reinterpret_cast<const RouteRecord*>(ring_->records);
  const size_t before = out.size();
  for (; next_ != written; ++next_) out.push_back(records[next_ & (ring_->capacity - 1)]);
  const uint32_t now = load_acquire(&ring_->written), behind = now - (written - count);
  if (behind >= ring_->capacity) {  // overwritten while being read
    const uint64_t torn = std::min<uint64_t>(behind - (ring_->capacity - 1), count);
    out.erase(out.begin() + static_cast<int64_t>(before), out.begin() + static_cast<int64_t>(before + torn));
    lost += torn;
  }
  return lost;
}

}  // namespace strata::tiers
