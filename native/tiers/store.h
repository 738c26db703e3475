// Experts in RAM: all of them, or as many as fit, with the rest on disk.
#pragma once
#include <array>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tiers/memory.h"
#include "tiers/open_file.h"
#include "tiers/read_queue.h"

namespace strata::tiers {

constexpr int kPlanes = 3;  // gate, up, down

// One plane of a layer's experts: expert e at `offset + e * stride` of file `file`, `bytes` long.
struct PlaneSource {
  int32_t file;
  uint64_t offset, stride, bytes;
};

struct LayerSource {
  PlaneSource planes[kPlanes];
  uint64_t* tables[kPlanes];  // addresses by expert, for kernels; valid while the expert is pinned
  int32_t experts;
};

// What a read of one expert takes: whole sectors of the file, planes that touch merged.
struct Segment {
  int32_t file;
  uint64_t offset, bytes, need, at;  // `at`: place in the RAM slot
};

// Slots of RAM are of a few sizes, one for each size of expert; within a size the least recently used expert goes first.
class ExpertStore {
 public:
  // `budget`: bytes for slots; each size gets its share, at least one slot. std::invalid_argument with the least budget
  // when it is too small, std::system_error when a file cannot be opened.
  ExpertStore(std::vector<LayerSource> layers, const std::vector<std::string>& paths, uint64_t budget, bool lock,
              int read_threads, unsigned depth, std::shared_ptr<Counters> counters);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Of the `n` experts listed, pins those that are in RAM and not yet done, and writes their positions to `batch`; begins
  // to read as many of the others as have a place. Where none is there, waits up to `limit_ns`. done[i] is set for those
  // returned. 0 when all were done, or after a fault.
  size_t take(int32_t layer, const int32_t* experts, size_t n, uint8_t* done, int32_t* batch, bool first, uint64_t limit_ns,
              uint32_t* fault);
  void release(int32_t layer, int32_t expert);

  // Begins to read ahead what has a place that nobody needs more urgently; never waits.
  void prefetch(int32_t layer, const int32_t* experts, size_t n);

  // The expert is in VRAM: its RAM is the first to be used again.
  void give_up(int32_t layer, int32_t expert);

  // Begins to read experts into every free slot, a layer's first ones first. filled() counts those that have come or
  // failed; fill_error() is the first errno among them, kTruncated or 0.
  uint64_t fill();
  uint64_t filled() const;
  int fill_error() const;

  // What the last failed read was, one line; empty when none failed since it was last asked.
  std::string failure();

  uint64_t expert_bytes(int32_t layer) const;  // of the planes
  bool holds(int32_t layer, int32_t expert) const;
  uint64_t slots() const { return slots_.size(); }
  uint64_t experts() const { return total_; }
  const TierMemory& memory() const { return *memory_; }
  ReadQueue& queue() { return *queue_; }
  const std::vector<LayerSource>& layers() const { return layers_; }
  const std::vector<StoreFile>& files() const { return files_; }
  Counters& counters() { return *counters_; }

 private:
  enum State : uint8_t { kAbsent, kReading, kReady };
  struct Expert {
    int32_t slot = -1;
    State state = kAbsent;
    bool ahead = false;  // read ahead and not asked for since
    int32_t pins = 0, error = 0;
  };
  struct RamSlot {
    uint8_t* data = nullptr;
    int32_t size = 0;  // its class
    int32_t layer = -1, expert = -1;
    int32_t reads = 0, error = 0;  // under way; the first that failed
    std::array<Read, kPlanes> read;
    std::list<int32_t>::iterator place;  // in its class's order of use
  };
  struct SlotClass {
    uint64_t bytes = 0;
    uint64_t demand = 0;        // bytes of all experts of this size
    size_t count = 0, ahead = 0;  // slots, and those being read ahead
    std::list<int32_t> order;   // least recently used first; all slots
  };

  void open(const std::vector<std::string>& paths);
  void plan(uint64_t budget);
  std::vector<Segment> segments(int32_t layer, int32_t expert) const;
  uint64_t slot_bytes(int32_t layer) const;
  Expert& at(int32_t layer, int32_t expert) { return experts_[first_[static_cast<size_t>(layer)] + static_cast<size_t>(expert)]; }
  const Expert& at(int32_t layer, int32_t expert) const {
    return experts_[first_[static_cast<size_t>(layer)] + static_cast<size_t>(expert)];
  }
  bool start(int32_t layer, int32_t expert, bool ahead, std::vector<Read*>* reads);
  int32_t victim(const SlotClass& c) const;
  void evict(RamSlot& slot);
  void touch(int32_t slot);
  void read_done(Read* read, int error);
  void landed(RamSlot& slot);
  void note_failure(const RamSlot& slot, const Read& read, int error);
  size_t pin_ready(int32_t layer, const int32_t* experts, size_t n, uint8_t* done, int32_t* batch, bool* failed,
                   std::vector<Read*>* reads);

  std::vector<LayerSource> layers_;
  std::vector<StoreFile> files_;
  std::shared_ptr<Counters> counters_;
  std::vector<size_t> first_;  // of a layer's experts
  std::vector<int32_t> class_of_;  // layer -> size
  std::vector<Expert> experts_;
  std::vector<SlotClass> classes_;
  std::vector<RamSlot> slots_;
  uint64_t total_ = 0;
  std::unique_ptr<TierMemory> memory_;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::string failure_;
  uint64_t filled_ = 0;
  int fill_error_ = 0;
  bool closing_ = false;
  std::unique_ptr<ReadQueue> queue_;  // last: its threads end before what they use
};

}  // namespace strata::tiers
