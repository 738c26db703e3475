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
  // `capacity`: ids of a request; `cache_rows`: rows that the cache holds (direct reads alone). std::system_error when
  // the file cannot be opened or, for RAM, read; std::bad_alloc when memory is refused.
  NgramStore(const NgramTable& table, NgramMode mode, uint64_t capacity, uint64_t cache_rows, int read_threads,
             uint64_t limit_ns, std::shared_ptr<Counters> counters);
  ~NgramStore();
  NgramStore(const NgramStore&) = delete;
  NgramStore& operator=(const NgramStore&) = delete;

  // The asking side. post: the request before must be served, which is waited for; take: waits for the rows.
  void post(const int32_t* ids, int32_t count, uint32_t* fault);
  const uint8_t* take(uint32_t* fault);

  uint64_t row_bytes() const { return table_.row_bytes; }
  uint64_t rows() const { return table_.rows; }
  uint64_t capacity() const { return capacity_; }
  const int32_t* identity() const { return identity_.data(); }
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
  void serve();
  bool gather(int32_t count);
  bool fetch(std::vector<Miss>& misses);
  const uint8_t* cached(int32_t id);
  void keep(int32_t id, const uint8_t* row);

  const NgramTable table_;
  const NgramMode mode_;
  const uint64_t capacity_, limit_ns_;
  std::shared_ptr<Counters> counters_;
  int fd_ = -1;
  bool direct_ = false;
  uint32_t align_ = 1;
  void* map_ = nullptr;
  uint64_t mapped_ = 0;
  const uint8_t* resident_ = nullptr;  // the table, in RAM or mapped
  std::unique_ptr<TierMemory> ram_, shared_;
  NgramView box_{};
  std::unique_ptr<RowReader> reader_;
  std::vector<int32_t> identity_, ways_;  // ids by set and way, -1: empty
  std::vector<uint8_t> next_way_, rows_;  // which way of a set goes next; cached rows
  uint64_t sets_ = 0;
  std::atomic<uint32_t> doorbell_{0}, stop_{0};
  uint32_t posts_ = 0;
  std::mutex lock_;
  std::string failure_;
  std::thread thread_;
};

// Op records: after ngram_rows, and instead of table_rows.
class NgramPost {
 public:
  NgramPost(std::shared_ptr<NgramStore> store, const int32_t* live, const int32_t* ids, int32_t heads)
      : store_(std::move(store)), live_(live), ids_(ids), heads_(heads) {}
  static void run(const Op& op, int thread, int threads);

 private:
  std::shared_ptr<NgramStore> store_;
  const int32_t *live_, *ids_;
  int32_t heads_;
};

class NgramTake {
 public:
  // `record`: table_rows as the program has it; its table and index become the mailbox's.
  NgramTake(std::shared_ptr<NgramStore> store, const Op& record) : store_(std::move(store)), record_(record) {}
  static void run(const Op& op, int thread, int threads);

 private:
  std::shared_ptr<NgramStore> store_;
  Op record_;
  std::atomic<uint64_t> rows_{0};  // address; 1: none came
  std::atomic<int32_t> left_{0};
};

}  // namespace strata::tiers
