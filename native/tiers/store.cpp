#include "tiers/store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace strata::tiers {

namespace {

constexpr uint64_t kPage = 4096;
constexpr size_t kAheadShare = 4;  // of a size's slots, one in so many may be under way for reading ahead

uint64_t up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

}  // namespace

ExpertStore::ExpertStore(std::vector<LayerSource> layers, const std::vector<std::string>& paths, uint64_t budget, bool lock,
                         int read_threads, unsigned depth, std::shared_ptr<Counters> counters)
    : layers_(std::move(layers)), counters_(std::move(counters)) {
  for (const LayerSource& layer : layers_) {
    first_.push_back(total_);
    total_ += static_cast<uint64_t>(layer.experts);
  }
  experts_.resize(total_);
  try {
    for (const std::string& path : paths) files_.push_back(open_file(path, true));
    plan(budget);
    uint64_t bytes = 0;
    for (const SlotClass& c : classes_) bytes += c.count * c.bytes;
    memory_ = std::make_unique<TierMemory>(bytes, lock);
    memory_->touch();
    uint8_t* data = memory_->data();
    for (size_t i = 0; i < classes_.size(); ++i) {
      SlotClass& c = classes_[i];
      for (size_t n = 0; n < c.count; ++n, data += c.bytes) {
        RamSlot slot;
        slot.data = data, slot.size = static_cast<int32_t>(i);
        slot.place = c.order.insert(c.order.end(), static_cast<int32_t>(slots_.size()));
        slots_.push_back(slot);
      }
    }
    queue_ = std::make_unique<ReadQueue>(read_threads, depth, counters_.get());
  } catch (...) {
    for (const StoreFile& file : files_) close(file.fd);
    throw;
  }
}

ExpertStore::~ExpertStore() {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    closing_ = true;
  }
  queue_.reset();
  for (const StoreFile& file : files_) close(file.fd);
}

uint64_t ExpertStore::expert_bytes(int32_t layer) const {
  uint64_t bytes = 0;
  for (const PlaneSource& plane : layers_[static_cast<size_t>(layer)].planes) bytes += plane.bytes;
  return bytes;
}

// Whole sectors around each plane, those that touch or overlap joined: planes of one tensor lie side by side.
std::vector<Segment> ExpertStore::segments(int32_t layer, int32_t expert) const {
  std::vector<Segment> parts;
  for (const PlaneSource& plane : layers_[static_cast<size_t>(layer)].planes) {
    const uint64_t align = files_[static_cast<size_t>(plane.file)].align;
    const uint64_t begin = plane.offset + static_cast<uint64_t>(expert) * plane.stride, end = begin + plane.bytes;
    const uint64_t from = begin / align * align;
    parts.push_back({plane.file, from, up(end, align) - from, end - from, 0});
  }
  std::sort(parts.begin(), parts.end(), [](const Segment& a, const Segment& b) {
    return a.file != b.file ? a.file < b.file : a.offset < b.offset;
  });
  std::vector<Segment> merged;
  for (const Segment& part : parts) {
    Segment* last = merged.empty() ? nullptr : &merged.back();
    if (last != nullptr && last->file == part.file && part.offset <= last->offset + last->bytes) {
      last->need = std::max(last->need, part.offset + part.need - last->offset);
      last->bytes = std::max(last->bytes, part.offset + part.bytes - last->offset);
    } else {
      merged.push_back(part);
    }
  }
  uint64_t at = 0;
  for (Segment& segment : merged) {
    segment.at = at;
    at += up(segment.bytes, std::max<uint64_t>(files_[static_cast<size_t>(segment.file)].align, 64));
  }
  return merged;
}

uint64_t ExpertStore::slot_bytes(int32_t layer) const {
  uint64_t most = 0;
  for (int32_t e = 0; e < layers_[static_cast<size_t>(layer)].experts; ++e) {
    const Segment last = segments(layer, e).back();
    most = std::max(most, last.at + last.bytes);
  }
  return up(most, kPage);
}

// Sizes, and the slots that each gets: one, a share of the budget by the bytes of its experts, then what is left over.
void ExpertStore::plan(uint64_t budget) {
  std::map<uint64_t, int32_t> by_size;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const uint64_t bytes = slot_bytes(static_cast<int32_t>(layer));
    const auto [found, fresh] = by_size.try_emplace(bytes, static_cast<int32_t>(classes_.size()));
    if (fresh) classes_.emplace_back().bytes = bytes;
    class_of_.push_back(found->second);
    classes_[static_cast<size_t>(found->second)].demand += bytes * static_cast<uint64_t>(layers_[layer].experts);
  }
  uint64_t demand = 0, least = 0;
  for (const SlotClass& c : classes_) demand += c.demand, least += c.bytes;
  if (budget < std::min(least, demand))
    throw std::invalid_argument("experts in RAM need at least " + std::to_string(least) + " bytes, one of each size; given " +
                                std::to_string(budget));
  const double share = budget >= demand ? 1.0 : static_cast<double>(budget - least) / static_cast<double>(demand);
  uint64_t left = std::min(budget, demand);
  for (SlotClass& c : classes_) {
    const uint64_t experts = c.demand / c.bytes;
    const uint64_t shared = static_cast<uint64_t>(share * static_cast<double>(experts));
    c.count = budget >= demand ? experts : std::min(experts, 1 + shared);
    left -= std::min(left, c.count * c.bytes);
  }
  for (SlotClass& c : classes_) {
    const uint64_t more = std::min(left / c.bytes, c.demand / c.bytes - c.count);
    c.count += more, left -= more * c.bytes;
  }
}

int32_t ExpertStore::victim(const SlotClass& c) const {
  for (const int32_t i : c.order) {
    const RamSlot& slot = slots_[static_cast<size_t>(i)];
    if (slot.expert < 0) return i;
    const Expert& held = at(slot.layer, slot.expert);
    if (held.state == kReady && held.pins == 0) return i;
  }
  return -1;
}

void ExpertStore::evict(RamSlot& slot) {
  if (slot.expert < 0) return;
  Expert& held = at(slot.layer, slot.expert);
  held.slot = -1, held.state = kAbsent, held.ahead = false;
  counters_->add(kEvictions);
  slot.layer = slot.expert = -1;
}

void ExpertStore::touch(int32_t slot) {
  std::list<int32_t>& order = classes_[static_cast<size_t>(slots_[static_cast<size_t>(slot)].size)].order;
  order.splice(order.end(), order, slots_[static_cast<size_t>(slot)].place);
}

// Gives an absent expert a slot and lists its reads; false where no slot can be had.
bool ExpertStore::start(int32_t layer, int32_t expert, bool ahead, std::vector<Read*>* reads) {
  const int32_t size = class_of_[static_cast<size_t>(layer)];
  SlotClass& c = classes_[static_cast<size_t>(size)];
  if (closing_ || (ahead && c.ahead >= c.count / kAheadShare)) return false;
  const int32_t i = victim(c);
  if (i < 0) return false;
  RamSlot& slot = slots_[static_cast<size_t>(i)];
  evict(slot);
  Expert& wanted = at(layer, expert);
  wanted.slot = i, wanted.state = kReading, wanted.ahead = ahead, wanted.error = 0;
  c.ahead += ahead;
  slot.layer = layer, slot.expert = expert, slot.error = 0;
  touch(i);
  const std::vector<Segment> parts = segments(layer, expert);
  slot.reads = static_cast<int32_t>(parts.size());
  for (size_t p = 0; p < parts.size(); ++p) {
    Read& read = slot.read[p];
    read = Read{files_[static_cast<size_t>(parts[p].file)].fd, parts[p].offset, parts[p].bytes, parts[p].need,
                slot.data + parts[p].at, [](Read* r, int error) { static_cast<ExpertStore*>(r->owner)->read_done(r, error); },
                this, 0};
    reads->push_back(&read);
  }
  const LayerSource& source = layers_[static_cast<size_t>(layer)];
  for (int p = 0; p < kPlanes; ++p) {
    const PlaneSource& plane = source.planes[p];
    const uint64_t begin = plane.offset + static_cast<uint64_t>(expert) * plane.stride;
    for (const Segment& part : parts)
      if (part.file == plane.file && begin >= part.offset && begin + plane.bytes <= part.offset + part.bytes)
        source.tables[p][expert] = reinterpret_cast<uint64_t>(slot.data + part.at + (begin - part.offset));
  }
  return true;
}

void ExpertStore::read_done(Read* read, int error) {
  const std::lock_guard<std::mutex> hold(lock_);
  const auto offset = reinterpret_cast<uint8_t*>(read) - reinterpret_cast<uint8_t*>(slots_.data());
  RamSlot& slot = slots_[static_cast<size_t>(offset) / sizeof(RamSlot)];
  if (error != 0 && slot.error == 0) {
    slot.error = error;
    note_failure(slot, *read, error);
  }
  if (--slot.reads == 0) landed(slot);
}

void ExpertStore::landed(RamSlot& slot) {
  Expert& expert = at(slot.layer, slot.expert);
  classes_[static_cast<size_t>(slot.size)].ahead -= expert.ahead;
  ++filled_;
  if (slot.error == 0) {
    expert.state = kReady;
  } else {
    if (fill_error_ == 0) fill_error_ = slot.error;
    expert = Expert{-1, kAbsent, false, 0, slot.error};
    slot.layer = slot.expert = -1;
    std::list<int32_t>& order = classes_[static_cast<size_t>(slot.size)].order;
    order.splice(order.begin(), order, slot.place);
  }
  changed_.notify_all();
}

void ExpertStore::note_failure(const RamSlot& slot, const Read& read, int error) {
  if (!failure_.empty() || error == ECANCELED) return;
  std::string path;
  for (const StoreFile& file : files_)
    if (file.fd == read.fd) path = file.path;
  const std::string what =
      error == kTruncated ? "the file ends at byte " + std::to_string(read.offset + read.got) + " of " +
                                std::to_string(read.offset + read.need) + " that are needed"
                          : std::string(strerror(error));
  failure_ = path + ": expert " + std::to_string(slot.expert) + " of expert layer " + std::to_string(slot.layer) +
             " cannot be read (" + std::to_string(read.need) + " bytes at " + std::to_string(read.offset) + "): " + what;
}

std::string ExpertStore::failure() {
  const std::lock_guard<std::mutex> hold(lock_);
  return std::exchange(failure_, {});
}

size_t ExpertStore::pin_ready(int32_t layer, const int32_t* experts, size_t n, uint8_t* done, int32_t* batch, bool* failed,
                              std::vector<Read*>* reads) {
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    Expert& expert = at(layer, experts[i]);
    if (done[i] != 0) continue;
    if (expert.error != 0) {
      *failed = true;
    } else if (expert.state == kReady) {
      if (std::exchange(expert.ahead, false)) counters_->add(kPrefetchUsed);
      ++expert.pins, done[i] = 1;
      touch(expert.slot);
      batch[count++] = static_cast<int32_t>(i);
    } else if (expert.state == kAbsent) {
      start(layer, experts[i], false, reads);
    }
  }
  return count;
}

size_t ExpertStore::take(int32_t layer, const int32_t* experts, size_t n, uint8_t* done, int32_t* batch, bool first,
                         uint64_t limit_ns, uint32_t* fault) {
  std::unique_lock<std::mutex> hold(lock_);
  const uint64_t start_ns = now_ns();
  for (size_t i = 0; first && i < n; ++i) {
    Expert& expert = at(layer, experts[i]);
    expert.error = 0;
    counters_->add(expert.state == kReady ? kRamHits : kRamMisses);
  }
  while (load_acquire(fault) == 0) {
    bool failed = false;
    std::vector<Read*> reads;
    const size_t count = pin_ready(layer, experts, n, done, batch, &failed, &reads);
    if (!reads.empty()) queue_->submit(reads.data(), reads.size(), true);
    if (failed) raise(fault, kReadFailed);
    if (count > 0 || std::all_of(done, done + n, [](uint8_t d) { return d != 0; })) return count;
    if (failed) break;
    const uint64_t spent = now_ns() - start_ns;
    if (spent >= limit_ns) {
      raise(fault, kWaitExpired);
      counters_->add(kWaitsExpired);
      break;
    }
    changed_.wait_for(hold, std::chrono::nanoseconds(std::min<uint64_t>(limit_ns - spent, 100'000'000)));
    counters_->add(kReadWaitNs, now_ns() - start_ns - spent);
  }
  return 0;
}

void ExpertStore::release(int32_t layer, int32_t expert) {
  const std::lock_guard<std::mutex> hold(lock_);
  if (--at(layer, expert).pins == 0) changed_.notify_all();
}

void ExpertStore::prefetch(int32_t layer, const int32_t* experts, size_t n) {
  const std::lock_guard<std::mutex> hold(lock_);
  std::vector<Read*> reads;
  for (size_t i = 0; i < n; ++i) {
    const Expert& expert = at(layer, experts[i]);
    if (expert.state == kReady && expert.slot >= 0) touch(expert.slot);
    if (expert.state != kAbsent) continue;
    if (!start(layer, experts[i], true, &reads)) break;
    counters_->add(kPrefetches);
  }
  if (!reads.empty()) queue_->submit(reads.data(), reads.size(), false);
}

void ExpertStore::give_up(int32_t layer, int32_t expert) {
  const std::lock_guard<std::mutex> hold(lock_);
  const Expert& held = at(layer, expert);
  if (held.state != kReady) return;
  std::list<int32_t>& order = classes_[static_cast<size_t>(class_of_[static_cast<size_t>(layer)])].order;
  order.splice(order.begin(), order, slots_[static_cast<size_t>(held.slot)].place);
}

uint64_t ExpertStore::fill() {
  const std::lock_guard<std::mutex> hold(lock_);
  std::vector<Read*> reads;
  uint64_t started = 0;
  filled_ = 0, fill_error_ = 0;
  std::vector<uint64_t> room;
  for (const SlotClass& c : classes_) room.push_back(c.count);
  int32_t most = 0;
  for (const LayerSource& layer : layers_) most = std::max(most, layer.experts);
  for (int32_t expert = 0; expert < most; ++expert) {
    for (int32_t layer = 0; layer < static_cast<int32_t>(layers_.size()); ++layer) {
      uint64_t& left = room[static_cast<size_t>(class_of_[static_cast<size_t>(layer)])];
      if (expert >= layers_[static_cast<size_t>(layer)].experts || left == 0) continue;
      if (at(layer, expert).state != kAbsent || !start(layer, expert, false, &reads)) continue;
      --left, ++started;
    }
  }
  queue_->submit(reads.data(), reads.size(), false);
  return started;
}

uint64_t ExpertStore::filled() const {
  const std::lock_guard<std::mutex> hold(lock_);
  return filled_;
}

int ExpertStore::fill_error() const {
  const std::lock_guard<std::mutex> hold(lock_);
  return fill_error_;
}

bool ExpertStore::holds(int32_t layer, int32_t expert) const {
  const std::lock_guard<std::mutex> hold(lock_);
  return at(layer, expert).state == kReady;
}

}  // namespace strata::tiers
