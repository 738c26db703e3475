#include "tiers/gpu_device.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "tiers/blob.h"

namespace strata::tiers {

namespace {
constexpr uint32_t kRouteRecords = 1u << 16;

std::vector<uint64_t> blob_bytes(const ExpertStore& store) {
  std::vector<uint64_t> bytes;
  for (const LayerSource& layer : store.layers()) bytes.push_back(Blob(layer).bytes);
  return bytes;
}
}  // namespace

GpuSlots::GpuSlots(std::vector<uint64_t> bytes, int32_t num_experts, std::vector<Slot> slots, ChangeRing* ring,
                   Counters* counters)
    : bytes_(std::move(bytes)),
      num_experts_(num_experts),
      ring_(ring),
      counters_(counters),
      slots_(std::move(slots)),
      holder_(bytes_.size() * static_cast<size_t>(num_experts), -1),
      lent_(slots_.size(), false) {
  if (slots_.size() > kMaxSlots)
    throw std::invalid_argument(std::to_string(slots_.size()) + " expert slots; at most " + std::to_string(kMaxSlots));
  if (bytes_.size() > kMaxExpertLayers)
    throw std::invalid_argument(std::to_string(bytes_.size()) + " layers with experts; at most " +
                                std::to_string(kMaxExpertLayers));
  for (Slot& slot : slots_) slot.state = kFree, slot.epoch = 0, slot.layer = slot.expert = -1;
}

bool GpuSlots::known(int32_t layer, int32_t expert) const {
  return layer >= 0 && layer < num_layers() && expert >= 0 && expert < num_experts_;
}

size_t GpuSlots::index(int32_t layer, int32_t expert) const {
  return static_cast<size_t>(layer) * static_cast<size_t>(num_experts_) + static_cast<size_t>(expert);
}

// What the device has applied is resident.
void GpuSlots::settle() const {
  const uint32_t applied = load_acquire(&ring_->applied);
  while (!arriving_.empty() && static_cast<int32_t>(applied - arriving_.front().first) >= 0) {
    slots_[arriving_.front().second].state = kResident;
    arriving_.pop_front();
  }
}

bool GpuSlots::append(const SlotChange& change) {
  if (written_ - load_acquire(&ring_->applied) >= kChangeRing) return false;
  ring_->changes[written_ % kChangeRing] = change;
  store_release(&ring_->written, ++written_);
  return true;
}

// Whether an absent expert may ever lie in the slot.
bool GpuSlots::fits(int32_t layer, int32_t expert, uint32_t slot) const {
  if (!known(layer, expert) || slot >= slots_.size() || holder_[index(layer, expert)] >= 0) return false;
  return !lent_[slot] && slots_[slot].bytes >= expert_bytes(layer);
}

bool GpuSlots::promote(int32_t layer, int32_t expert, uint32_t slot) {
  const std::lock_guard<std::mutex> lock(lock_);
  settle();
  return fits(layer, expert, slot) && slots_[slot].state == kFree && bring(layer, expert, slot, -1);
}

bool GpuSlots::replace(int32_t layer, int32_t expert, uint32_t slot) {
  const std::lock_guard<std::mutex> lock(lock_);
  settle();
  if (!fits(layer, expert, slot) || slots_[slot].state != kResident) return false;
  const size_t leaving = index(slots_[slot].layer, slots_[slot].expert);
  if (!bring(layer, expert, slot, static_cast<int32_t>(leaving))) return false;
  holder_[leaving] = -1;
  counters_->add(kRetirements);
  return true;
}

bool GpuSlots::bring(int32_t layer, int32_t expert, uint32_t slot, int32_t leaving) {
  Slot& s = slots_[slot];
  if (!append({s.address, leaving, static_cast<int32_t>(index(layer, expert)), slot, 0})) return false;
  s.state = kArriving, s.epoch = load_acquire(&ring_->epoch), s.layer = layer, s.expert = expert;
  holder_[index(layer, expert)] = static_cast<int32_t>(slot);
  arriving_.emplace_back(written_, slot);
  counters_->add(kPromotions), counters_->add(kPromotionBytes, expert_bytes(layer));
  return true;
}

bool GpuSlots::retire(int32_t layer, int32_t expert) {
  const std::lock_guard<std::mutex> lock(lock_);
  settle();
  if (!known(layer, expert) || holder_[index(layer, expert)] < 0) return false;
  const auto slot = static_cast<uint32_t>(holder_[index(layer, expert)]);
  return retire(slots_[slot], slot);
}

bool GpuSlots::retire(Slot& s, uint32_t slot) {
  if (s.state != kResident) return false;
  const size_t expert = index(s.layer, s.expert);
  if (!append({s.address, static_cast<int32_t>(expert), -1, slot, 0})) return false;
  holder_[expert] = -1;
  s.state = kFree, s.layer = s.expert = -1;
  counters_->add(kRetirements);
  return true;
}

bool GpuSlots::may_move(int32_t layer) const {
  const uint64_t reading = reading_;
  const auto first = static_cast<int32_t>(static_cast<uint32_t>(reading)), count = static_cast<int32_t>(reading >> 32);
  return (layer - first + num_layers()) % num_layers() >= count;
}

size_t GpuSlots::lend(const std::vector<uint32_t>& slots) {
  const std::lock_guard<std::mutex> lock(lock_);
  settle();
  size_t left = 0;
  bool changed = false;
  for (const uint32_t slot : slots) {
    if (slot >= slots_.size()) throw std::invalid_argument("no slot " + std::to_string(slot));
    changed |= !lent_[slot] || slots_[slot].state == kResident;
    lent_[slot] = true;
    if (slots_[slot].state != kFree && !retire(slots_[slot], slot)) ++left;
  }
  if (changed) emptied_ = written_;
  const bool applied = static_cast<int32_t>(load_acquire(&ring_->applied) - emptied_) >= 0;
  return left > 0 || applied ? left : slots.size();
}

void GpuSlots::give_back() {
  const std::lock_guard<std::mutex> lock(lock_);
  lent_.assign(lent_.size(), false);
}

int32_t GpuSlots::slot_of(int32_t layer, int32_t expert) const {
  const std::lock_guard<std::mutex> lock(lock_);
  return known(layer, expert) ? holder_[index(layer, expert)] : -1;
}

uint32_t GpuSlots::state(uint32_t slot) const {
  const std::lock_guard<std::mutex> lock(lock_);
  settle();
  return lent_[slot] && slots_[slot].state == kFree ? kLeaving : slots_[slot].state;
}

std::vector<Slot> GpuSlots::slots() const {
  const std::lock_guard<std::mutex> lock(lock_);
  settle();
  std::vector<Slot> found = slots_;
  for (size_t i = 0; i < found.size(); ++i)
    if (lent_[i] && found[i].state == kFree) found[i].state = kLeaving;
  return found;
}

size_t GpuSlots::moving() const {
  const std::lock_guard<std::mutex> lock(lock_);
  settle();
  return arriving_.size();
}

uint64_t GpuDevice::mapped_bytes(uint64_t base, const MailboxLimits& limits, GpuMapped* parts) {
  uint64_t at = base;
  const auto take = [&](uint64_t bytes) { return std::exchange(at, at + line_up(bytes)); };
  parts->changes = reinterpret_cast<ChangeRing*>(take(sizeof(ChangeRing)));
  parts->settings = reinterpret_cast<TierSettings*>(take(sizeof(TierSettings)));
  parts->routes = reinterpret_cast<RouteRing*>(take(sizeof(RouteRing)));
  const uint64_t records = take(kRouteRecords * sizeof(RouteRecord));
  parts->counts = reinterpret_cast<uint64_t*>(take(kNumCounters * sizeof(uint64_t)));
  if (base != 0) parts->routes->records = records, parts->routes->capacity = kRouteRecords;
  at += mailbox_view(at, limits, &parts->box);
  return at - base;
}

namespace {
GpuMapped place(uint64_t mapped, const MailboxLimits& limits) {
  GpuMapped parts{};
  GpuDevice::mapped_bytes(mapped, limits, &parts);
  return parts;
}
}  // namespace

GpuDevice::GpuDevice(std::shared_ptr<ExpertStore> store, const GpuOptions& options, uint64_t mapped)
    : store_(std::move(store)),
      parts_(place(mapped, options.limits)),
      slots_(blob_bytes(*store_), options.limits.experts, options.slots, parts_.changes, &store_->counters()),
      counted_(kNumCounters, 0) {
  parts_.settings->limit_ns = options.limit_ns;
  WorkerOptions working{options.workers, options.inner, options.limit_ns};
  working.polling = true, working.fault_words = options.faults, working.told = &parts_.settings->costs;
  if (options.apart) working.counters = &apart_;
  workers_ = std::make_unique<Workers>(working, store_.get(), parts_.box, options.limits, &fault_, &kernel_faults_);
}

GpuDevice::~GpuDevice() { close(); }

void GpuDevice::close() {
  raise(&fault_, kWaitExpired);
  workers_->end();
}

Counters& GpuDevice::counters() {
  const std::lock_guard<std::mutex> lock(counting_);
  for (uint32_t i = 0; i < kNumCounters; ++i) {
    const uint64_t now = *const_cast<volatile uint64_t*>(parts_.counts + i);
    store_->counters().add(static_cast<Counter>(i), now - std::exchange(counted_[i], now));
  }
  return store_->counters();
}

uint32_t GpuDevice::started() { return workers_->started(); }

void GpuDevice::finished(uint32_t number) { workers_->finished(number); }

}  // namespace strata::tiers
