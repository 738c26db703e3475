// Rows of an n-gram table by id, asked for through a mailbox: from RAM, from a map, or by direct reads with a row cache.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cpu/op.h"
#include "tiers/memory.h"
#include "tiers/read_queue.h"
#include "tiers/row_reader.h"

namespace strata::tiers {

struct NgramTable {
  std::string path;
  uint64_t offset, rows, row_bytes;
};

enum class NgramMode : uint32_t { kRam, kMap, kDirect };

class NgramStore {
 public:
  // `cache_rows`: rows that the cache holds (direct reads alone). std::system_error when
  // the file cannot be opened or, for RAM, read; std::bad_alloc when memory is refused.
  NgramStore(const NgramTable& table, NgramMode mode, uint64_t cache_rows, int read_threads, uint64_t limit_ns,
             std::shared_ptr<Counters> counters);
  ~NgramStore();
  void end();  // nobody is answered any more: memory that a device shares may go
  NgramStore(const NgramStore&) = delete;
  NgramStore& operator=(const NgramStore&) = delete;

  // A mailbox of its own for one program: requests of up to `capacity` ids. A prompt chunk may stand between asking and
  // taking while steps ask. It lives as long as the store. `memory`: box_bytes(capacity) zeroed bytes that it lies in,
  // where a device is to ask; null: the store's own.
  class Box;
  Box* add_box(uint64_t capacity, void* memory = nullptr);
  uint64_t box_bytes(uint64_t capacity) const;

  // A device asks without waking the store, so its host tells beforehand that it will, once for each request: the store
  // looks for it until it is there, or until the limit is over.
  void expect(Box* box);

  // The asking side. post: the request before must be served, which is waited for; take: waits for the rows.
  void post(Box* box, const int32_t* ids, int32_t count, uint32_t* fault);
  const uint8_t* take(Box* box, uint32_t* fault);

  uint64_t row_bytes() const { return table_.row_bytes; }
  uint64_t rows() const { return table_.rows; }
  uint64_t limit_ns() const { return limit_ns_; }
  // The whole table in RAM, in pages of its own; null where it is not.
  const uint8_t* in_ram() const { return ram_ ? ram_->data() : nullptr; }
  uint64_t bytes() const { return table_.rows * table_.row_bytes; }
  const char* method() const { return mode_ == NgramMode::kDirect ? reader_->method() : "memory"; }
  bool direct() const { return direct_; }
  void inject(ReadFault fault, uint32_t after) { reader_->inject(fault, after); }
  std::string failure();

 private:
  struct Miss {
    int32_t id, place;
  };
  void open();
  void load();
  bool load_part(std::atomic<uint64_t>& next, std::atomic<int>& error);
  void serve();
  bool serve(Box& box);
  void ring();
  void sleep(uint32_t seen, const std::vector<Box*>& boxes);
  bool gather(Box& box);
  bool fetch(Box& box, std::vector<Miss>& misses);
  const uint8_t* cached(int32_t id);
  void keep(int32_t id, const uint8_t* row);

  const NgramTable table_;
  const NgramMode mode_;
  const uint64_t limit_ns_;
  std::shared_ptr<Counters> counters_;
  int fd_ = -1;
  bool direct_ = false;
  uint32_t align_ = 1;
  void* map_ = nullptr;
  uint64_t mapped_ = 0;
  const uint8_t* resident_ = nullptr;  // the table, in RAM or mapped
  std::unique_ptr<TierMemory> ram_;
  std::unique_ptr<RowReader> reader_;
  std::vector<int32_t> ways_;             // ids by set and way, -1: empty
  std::vector<uint8_t> next_way_, rows_;  // which way of a set goes next; cached rows
  uint64_t sets_ = 0;
  std::atomic<uint32_t> doorbell_{0}, stop_{0};
  std::atomic<uint64_t> expected_until_{0};  // when requests that were announced are given up
  std::mutex lock_;
  std::vector<std::unique_ptr<Box>> boxes_;  // with lock_
  std::string failure_;
  std::thread thread_;
};

class NgramStore::Box {
 public:
  Box(uint64_t capacity, uint64_t row_bytes, void* memory);
  uint64_t capacity() const { return identity_.size(); }
  const NgramView& view() const { return view_; }
  const int32_t* identity() const { return identity_.data(); }  // 0, 1, 2, ...: rows lie in the order of ids

 private:
  friend class NgramStore;
  std::unique_ptr<TierMemory> memory_;
  NgramView view_{};
  std::vector<int32_t> identity_;
  uint32_t posts_ = 0;
  std::atomic<uint32_t> expected_{0};
};

// Op records: after ngram_rows, and instead of table_rows; the two of a program share a box.
class NgramPost {
 public:
  NgramPost(std::shared_ptr<NgramStore> store, NgramStore::Box* box, const int32_t* live, const int32_t* ids, int32_t heads)
      : store_(std::move(store)), box_(box), live_(live), ids_(ids), heads_(heads) {}
  static void run(const Op& op, int thread, int threads);

 private:
  std::shared_ptr<NgramStore> store_;
  NgramStore::Box* box_;
  const int32_t *live_, *ids_;
  int32_t heads_;
};

class NgramTake {
 public:
  // `record`: table_rows as the program has it; its table and index become the mailbox's.
  NgramTake(std::shared_ptr<NgramStore> store, NgramStore::Box* box, const Op& record)
      : store_(std::move(store)), box_(box), record_(record) {}
  static void run(const Op& op, int thread, int threads);

 private:
  std::shared_ptr<NgramStore> store_;
  NgramStore::Box* box_;
  Op record_;
  std::atomic<uint64_t> rows_{0};  // address; 1: none came
  std::atomic<int32_t> left_{0};
};

}  // namespace strata::tiers
