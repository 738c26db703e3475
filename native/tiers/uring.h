// A small io_uring by its system calls: reads only, one thread.
#pragma once
#include <cstdint>

struct io_uring_sqe;
struct io_uring_cqe;

namespace strata::tiers {

class Uring {
 public:
  // A ring of `entries` requests (a power of two). Check ok(): where io_uring is missing or refused it is false.
  explicit Uring(unsigned entries);
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  bool ok() const { return fd_ >= 0; }
  unsigned free() const;  // requests that may still be queued

  // Queues a read; `tag` comes back with its result.
  void read(int fd, uint64_t offset, void* to, unsigned bytes, uint64_t tag);
  // Hands queued requests to the kernel and waits until at least `wait` results are there; false when it refuses.
  bool enter(unsigned wait);
  // The oldest result: bytes read, or -errno. False when there is none.
  bool pop(uint64_t* tag, int* result);

 private:
  bool map(unsigned sq_bytes, unsigned cq_bytes, unsigned entries);

  int fd_ = -1;
  unsigned entries_ = 0, queued_ = 0, inside_ = 0;
  void *sq_ = nullptr, *cq_ = nullptr;
  uint64_t sq_bytes_ = 0, cq_bytes_ = 0, sqe_bytes_ = 0;
  io_uring_sqe* sqes_ = nullptr;
  io_uring_cqe* cqes_ = nullptr;
  unsigned *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  unsigned sq_mask_ = 0, cq_mask_ = 0;
};

}  // namespace strata::tiers
