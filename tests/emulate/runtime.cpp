// The emulated device: runs the thread blocks of a launch one after another, each thread a fiber that runs until it waits.
//
// What it catches: reads and writes outside an allocation (pages without access round each, pattern bytes up to them),
// shared memory read before it is written (it begins as 0xff, so do allocations), barriers and warp operations that
// threads do not share, and, because a seed changes the order of lanes, warps and thread blocks, results that depend on an
// order: a missing barrier gives other bits.
#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

namespace emulated {

struct Dim3 {
  unsigned x, y, z;
};
using WarpOp = void (*)(void** payloads, uint32_t mask);

}  // namespace emulated

emulated::Dim3 threadIdx, blockIdx, blockDim, gridDim;

using namespace emulated;

constexpr int kMaxThreads = 1024, kWarps = kMaxThreads / 32;
constexpr size_t kPage = 4096, kDynamic = 256 << 10;
// No power of two, and `kApart` more from thread to thread: else the ends of all stacks, which every switch touches, would
// share a few sets of the processor's caches.
constexpr size_t kStack = 132 << 10, kApart = 256, kColours = kPage / kApart;

// Saves the callee's registers on the old stack, takes those on the new one.
extern "C" void emulated_switch(void** old_sp, void* new_sp);
asm(R"(
.text
.globl emulated_switch
.type emulated_switch, @function
emulated_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

struct Fiber {
  void* sp;
  Dim3 index;
  void* payload;
  uint32_t mask;
  WarpOp run;
  const uint32_t* phases;
  uint32_t parity;
};

static Fiber fibers[kMaxThreads];
static uint32_t runnable[kWarps], arrived[kWarps], at_barrier[kWarps], at_dependency[kWarps], at_phase[kWarps], alive[kWarps];
static int warps, current, order[kWarps], barrier_count, barrier_result;
static bool passed_dependency, settled, launched_early, predecessor_launched_early;
static void* main_sp;
static char *stacks, *dynamic_end;
static size_t dynamic_bytes;
static uint64_t seed, random_state;
static void (*kernel)(void**);
static void** parameters;
static char message[400];
static sigjmp_buf failed;

static uint64_t random64() {  // splitmix64 (Steele, Lea and Flood 2014)
  uint64_t z = random_state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

static void fail(const char* format, ...) {
  va_list args;
  va_start(args, format);
  const int used = snprintf(message, sizeof message, "thread (%u, %u, %u) of block (%u, %u, %u): ", threadIdx.x, threadIdx.y, threadIdx.z,
                            blockIdx.x, blockIdx.y, blockIdx.z);
  vsnprintf(message + used, sizeof message - used, format, args);
  va_end(args);
  siglongjmp(failed, 1);
}

extern "C" void emulated_fail(const char* why) { fail("%s", why); }

// ---- protection of what earlier launches wrote -------------------------------------------------------------------

struct Region {
  char* map;
  size_t mapped, size;
  char* data;
  bool written;  // by a kernel, as far as launches were watched
};
static std::map<char*, Region> regions;

// Allocations that kernels write are found by watching (a write to a page that may only be read faults once); in enforced
// launches they may not be touched before dependency_wait.
enum Watch { kNone = 0, kWatch = 1, kEnforce = 2 };
static int watch;

static void protect(int access, bool written) {
  for (auto& [_, r] : regions)
    if (r.written == written) mprotect(r.map + kPage, r.mapped - 2 * kPage, access);
}
constexpr int kAll = PROT_READ | PROT_WRITE;

// ---- scheduling --------------------------------------------------------------------------------------------------

static int choose(uint32_t lanes) {
  if (seed == 0) return __builtin_ctz(lanes);
  if (seed == 1) return 31 - __builtin_clz(lanes);
  const int turn = static_cast<int>(random64() & 31u);
  const uint32_t turned = lanes >> turn | lanes << (32 - turn) % 32;
  return (__builtin_ctz(turned) + turn) % 32;
}

static bool wake_those_whose_phase_is_over() {
  bool any = false;
  for (int w = 0; w < warps; ++w)
    for (uint32_t left = at_phase[w]; left != 0; left &= left - 1) {
      const Fiber& f = fibers[w * 32 + __builtin_ctz(left)];
      if ((*f.phases >> 16 & 1u) == f.parity) continue;
      any = true, at_phase[w] &= ~(left & -left), runnable[w] |= left & -left;
    }
  return any;
}

// A warp that can run, any of them; -1: none.
static int any_warp() {
  const int turn = static_cast<int>(random64() % warps);
  for (int i = 0; i < warps; ++i)
    if (runnable[(i + turn) % warps]) return (i + turn) % warps;
  return -1;
}

// The next thread that can run, or -1 when all have ended.
static int next_thread() {
  if (seed > 1 && random64() % 4 == 0) {  // else when nothing else can run
    wake_those_whose_phase_is_over();
    const int w = any_warp();
    if (w >= 0) return w * 32 + choose(runnable[w]);
  }
  for (;;) {
    const int here = current >> 5;
    if (runnable[here]) return here * 32 + choose(runnable[here]);
    int waiting = 0, live = 0, dependent = 0;
    for (int i = 0; i < warps; ++i) {
      const int w = order[i];
      if (runnable[w]) return w * 32 + choose(runnable[w]);
      waiting += __builtin_popcount(at_barrier[w]);
      dependent += __builtin_popcount(at_dependency[w]);
      live += __builtin_popcount(alive[w]);
    }
    if (live == 0) return -1;
    if (wake_those_whose_phase_is_over()) continue;
    if (dependent) {
      if (!passed_dependency && !settled && watch == kEnforce) protect(kAll, true);
      passed_dependency = true;
      for (int w = 0; w < warps; ++w) runnable[w] |= at_dependency[w], at_dependency[w] = 0;
    } else if (waiting == live) {
      barrier_result = barrier_count;
      barrier_count = 0;
      for (int w = 0; w < warps; ++w) runnable[w] |= at_barrier[w], at_barrier[w] = 0;
      if (seed > 1)
        for (int i = warps - 1; i > 0; --i) std::swap(order[i], order[random64() % (i + 1)]);
    } else {
      fail("a barrier or warp operation that %d of the %d threads left do not reach", live - waiting, live);
    }
  }
}

static void go_on() {
  const int from = current, to = next_thread();
  if (to == from) return;
  current = to < 0 ? from : to;
  if (to >= 0) threadIdx = fibers[to].index;
  emulated_switch(&fibers[from].sp, to < 0 ? main_sp : fibers[to].sp);
}

static uint32_t bit() { return 1u << (current & 31); }

extern "C" void emulated_yield() {
  const int here = current >> 5;
  const uint32_t mine = bit();
  runnable[here] &= ~mine;  // others first
  for (int i = 0; i < warps; ++i)
    if (runnable[i]) {
      const int self = current, w = runnable[here] ? here : i;
      const int to = w * 32 + choose(runnable[w]);
      runnable[here] |= mine;
      current = to;
      threadIdx = fibers[to].index;
      return emulated_switch(&fibers[self].sp, fibers[to].sp);
    }
  runnable[here] |= mine;
}

extern "C" void emulated_phase(const uint32_t* phases, uint32_t parity) {
  if ((*phases >> 16 & 1u) != parity) return;
  fibers[current].phases = phases, fibers[current].parity = parity;
  runnable[current >> 5] &= ~bit();
  at_phase[current >> 5] |= bit();
  go_on();
}

extern "C" void emulated_arrived() {
  if (seed > 1) go_on();  // this thread may run on, or any other
}

extern "C" int emulated_barrier(int predicate) {
  barrier_count += predicate != 0;
  runnable[current >> 5] &= ~bit();
  at_barrier[current >> 5] |= bit();
  go_on();
  return barrier_result;
}

extern "C" void emulated_dependency_wait() {
  if (passed_dependency) return;
  runnable[current >> 5] &= ~bit();
  at_dependency[current >> 5] |= bit();
  go_on();
}

extern "C" void emulated_dependency_launch() { launched_early |= !passed_dependency; }

extern "C" void emulated_dependency_settled() {
  if (passed_dependency || settled) return;
  if (predecessor_launched_early) fail("relies on launches before its predecessor, which lets it start before they are complete");
  settled = true;
  protect(kAll, true);
}

extern "C" void emulated_warp(uint32_t mask, void* payload, WarpOp run) {
  const int w = current >> 5;
  Fiber& mine = fibers[current];
  mine.payload = payload, mine.mask = mask, mine.run = run;
  if (!(mask & bit())) fail("a warp operation whose mask %08x leaves out its caller", mask);
  if (mask & ~alive[w]) fail("a warp operation whose mask %08x names threads that have ended or never were", mask);
  arrived[w] |= bit();
  if ((arrived[w] & mask) != mask) {
    runnable[w] &= ~bit();
    return go_on();
  }
  void* payloads[32];
  for (int i = 0; i < 32; ++i) {
    const Fiber& f = fibers[w * 32 + i];
    payloads[i] = f.payload;
    if ((mask >> i & 1u) && (f.mask != mask || f.run != run)) fail("lanes of a warp meet in different warp operations");
  }
  run(payloads, mask);
  arrived[w] &= ~mask;
  runnable[w] |= mask;
  if (seed > 1) go_on();
}

// ---- products of a warp's tiles, 16 rows x 8 columns: what emulated_ptx.h says of lanes and words --------------------

typedef int32_t Ints __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(32)));

static void need_whole_warp(uint32_t mask) {
  if (mask != 0xffffffffu) fail("mma by a part of a warp");
}

// Sums in the order of k, product and sum rounded apart.
template <class Lane, class Value, int K, class V, class Convert> static void multiply(void** lanes, int depth, Convert convert) {
  constexpr int kWord = 4 / sizeof(Value), kDeep = 4 * kWord;  // values of a word; of the four lanes' words side by side
  alignas(32) decltype(convert(Value())) a[16][K], b[K][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Lane& from = *static_cast<const Lane*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < depth / kDeep; ++half) {
      Value words[3][kWord];
      memcpy(words[0], &from.a[2 * half], 4), memcpy(words[1], &from.a[2 * half + 1], 4), memcpy(words[2], &from.b[half], 4);
      for (int e = 0; e < kWord; ++e) {
        const int k = kDeep * half + kWord * t + e;
        a[g][k] = convert(words[0][e]), a[g + 8][k] = convert(words[1][e]), b[k][g] = convert(words[2][e]);
      }
    }
  }
  V d[16];
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e) d[lane / 4 + 8 * (e / 2)][2 * (lane % 4) + e % 2] = static_cast<const Lane*>(lanes[lane])->d[e];
  for (int k = 0; k < depth; ++k) {
    V column;
    memcpy(&column, b[k], sizeof column);
    for (int row = 0; row < 16; ++row) d[row] += a[row][k] * column;
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 4; ++e) static_cast<Lane*>(lanes[lane])->d[e] = d[lane / 4 + 8 * (e / 2)][2 * (lane % 4) + e % 2];
}

struct MmaLane {
  int d[4];
  uint32_t a[4], b[2];
  int depth;
};
extern "C" void emulated_multiply_int8(void** lanes, uint32_t mask) {
  need_whole_warp(mask);
  multiply<MmaLane, int8_t, 32, Ints>(lanes, static_cast<MmaLane*>(lanes[0])->depth, [](int8_t x) -> int32_t { return x; });
}

struct FloatMmaLane {
  float d[4];
  uint32_t a[4], b[2];
};
extern "C" void emulated_multiply_f16(void** lanes, uint32_t mask) {
  need_whole_warp(mask);
  multiply<FloatMmaLane, _Float16, 16, Floats>(lanes, 16, [](_Float16 x) -> float { return x; });
}
extern "C" void* emulated_dynamic_shared() { return dynamic_end - (dynamic_bytes + 15) / 16 * 16; }

static void begin_copies();  // copies.cpp
static void end_copies();

static void thread_main() {
  begin_copies();
  kernel(parameters);
  end_copies();
  runnable[current >> 5] &= ~bit();
  alive[current >> 5] &= ~bit();
  go_on();
  __builtin_unreachable();
}

static void run_block(int threads) {
  warps = (threads + 31) / 32;
  for (int w = 0; w < warps; ++w) {
    const int lanes = threads - 32 * w < 32 ? threads - 32 * w : 32;
    runnable[w] = alive[w] = lanes == 32 ? ~0u : (1u << lanes) - 1;
    arrived[w] = at_barrier[w] = at_dependency[w] = at_phase[w] = 0;
    order[w] = seed == 1 ? warps - 1 - w : w;
  }
  barrier_count = 0;
  for (int t = 0; t < threads; ++t) {
    const unsigned u = static_cast<unsigned>(t);
    fibers[t].index = {u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y};
    void** top = reinterpret_cast<void**>(stacks + (t + 1) * kStack - t % kColours * kApart - 8);  // as after a call
    *--top = reinterpret_cast<void*>(thread_main);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    fibers[t].sp = top;
  }
  if (seed > 1)
    for (int i = warps - 1; i > 0; --i) std::swap(order[i], order[random64() % (i + 1)]);
  current = order[0] * 32;
  current += choose(runnable[order[0]]);
  threadIdx = fibers[current].index;
  emulated_switch(&main_sp, fibers[current].sp);
}

// ---- shared memory: the thread-local data of the kernel's library -------------------------------------------------

struct Shared {
  const void* base;
  void* data;
  size_t size;
};

static int find_shared(dl_phdr_info* info, size_t, void* result) {
  Shared& s = *static_cast<Shared*>(result);
  if (reinterpret_cast<const void*>(info->dlpi_addr) != s.base) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i)
    if (info->dlpi_phdr[i].p_type == PT_TLS) s.data = info->dlpi_tls_data, s.size = info->dlpi_phdr[i].p_memsz;
  return 1;
}

// ---- launches ----------------------------------------------------------------------------------------------------

static void on_signal(int number, siginfo_t* info, void*) {
  if (number != SIGSEGV && number != SIGBUS) fail("an index outside its array, a misaligned access or a shift too far");
  const char* at = static_cast<const char*>(info->si_addr);
  for (auto& [_, r] : regions) {
    if (at < r.map || at >= r.map + r.mapped) continue;
    const bool inside = at >= r.map + kPage && at < r.map + r.mapped - kPage;
    if (inside && watch == kWatch) {
      r.written = true;
      mprotect(r.map + kPage, r.mapped - 2 * kPage, kAll);
      return;
    }
    if (inside) fail("touches byte %td of an allocation of %zu before dependency_wait", at - r.data, r.size);
    fail("byte %td of an allocation of %zu", at - r.data, r.size);
  }
  if (at >= dynamic_end && at < dynamic_end + kPage) fail("byte past %zu of dynamic shared memory", dynamic_bytes);
  fail("address %p, which is no allocation", static_cast<const void*>(at));
}

static char* map_pages(size_t bytes) {
  return static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

static void set_up() {
  if (stacks) return;
  stacks = map_pages(kMaxThreads * kStack);
  for (int t = 0; t < kMaxThreads; ++t) mprotect(stacks + t * kStack, kPage, PROT_NONE);
  char* dynamic = map_pages(kDynamic + 2 * kPage);
  mprotect(dynamic, kPage, PROT_NONE);
  dynamic_end = dynamic + kPage + kDynamic;
  mprotect(dynamic_end, kPage, PROT_NONE);
}

struct Signals {
  static constexpr int kCaught[4] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};
  struct sigaction before[4];
  stack_t stack_before;
  Signals() {
    static char* stack = map_pages(64 << 10);
    const stack_t ours{stack, 0, 64 << 10};
    sigaltstack(&ours, &stack_before);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < 4; ++i) sigaction(kCaught[i], &action, &before[i]);
  }
  ~Signals() {
    for (int i = 0; i < 4; ++i) sigaction(kCaught[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
};

// Runs a launch; `call` is the kernel's `call_NAME`, `touch` makes its library's shared memory exist. Null on success, else what went wrong.
extern "C" const char* emulated_launch(void (*call)(void**), void (*touch)(), void** params, const unsigned* grid, const unsigned* block, size_t shared,
                                       uint64_t new_seed, int new_watch) {
  set_up();
  const size_t threads = static_cast<size_t>(block[0]) * block[1] * block[2];
  if (threads == 0 || threads > kMaxThreads || shared > kDynamic || !grid[0] || !grid[1] || !grid[2]) return "invalid launch";
  watch = new_watch;
  kernel = call, parameters = params, seed = new_seed, random_state = new_seed, dynamic_bytes = shared;
  gridDim = {grid[0], grid[1], grid[2]}, blockDim = {block[0], block[1], block[2]};
  touch();
  Dl_info info;
  dladdr(reinterpret_cast<void*>(call), &info);
  Shared tls{info.dli_fbase, nullptr, 0};
  dl_iterate_phdr(find_shared, &tls);
  std::vector<uint32_t> blocks(static_cast<size_t>(grid[0]) * grid[1] * grid[2]);
  std::iota(blocks.begin(), blocks.end(), 0u);
  if (seed == 1) std::reverse(blocks.begin(), blocks.end());
  if (seed > 1)
    for (size_t i = blocks.size() - 1; i > 0; --i) std::swap(blocks[i], blocks[random64() % (i + 1)]);
  Signals signals;
  message[0] = 0;
  if (sigsetjmp(failed, 1)) {
    protect(kAll, true), protect(kAll, false);
    return message;
  }
  if (watch == kWatch) protect(PROT_READ, false);
  predecessor_launched_early = launched_early, launched_early = false;
  for (const uint32_t b : blocks) {
    blockIdx = {b % grid[0], b / grid[0] % grid[1], b / grid[0] / grid[1]};
    if (tls.data) memset(tls.data, 0xff, tls.size);
    memset(dynamic_end - (shared + 15) / 16 * 16, 0xff, (shared + 15) / 16 * 16);
    passed_dependency = watch != kEnforce, settled = false;
    if (watch == kEnforce) protect(PROT_NONE, true);
    run_block(static_cast<int>(threads));
    if (!passed_dependency) {
      protect(kAll, true);
      return "no thread of a block waits for the launch before it";
    }
  }
  if (watch == kWatch) protect(kAll, false);
  return nullptr;
}

// ---- memory --------------------------------------------------------------------------------------------------------

constexpr unsigned char kPattern = 0xa5;

// Bytes [0, size) at a multiple of `align`, against the page after; zero, or 0xff where `poison` is given.
extern "C" void* emulated_alloc(size_t size, size_t align, int poison) {
  const size_t room = (size + align - 1) / align * align, mapped = (room + kPage - 1) / kPage * kPage + 2 * kPage;
  char* map = map_pages(mapped);
  if (map == MAP_FAILED) return nullptr;
  mprotect(map, kPage, PROT_NONE);
  mprotect(map + mapped - kPage, kPage, PROT_NONE);
  char* data = map + mapped - kPage - room;
  memset(map + kPage, kPattern, data - (map + kPage));
  if (poison) memset(data, 0xff, size);
  memset(data + size, kPattern, room - size);
  regions[data] = {map, mapped, size, data, false};
  return data;
}

// Null when the bytes round every allocation are as they were.
extern "C" const char* emulated_check() {
  for (auto& [_, r] : regions) {
    for (const char* p = r.map + kPage; p < r.map + r.mapped - kPage; ++p) {
      if (p == r.data) p += r.size;
      if (p < r.map + r.mapped - kPage && static_cast<unsigned char>(*p) != kPattern) {
        snprintf(message, sizeof message, "byte %td of an allocation of %zu was written", p - r.data, r.size);
        return message;
      }
    }
  }
  return nullptr;
}

extern "C" void emulated_free(void* p) {
  const auto it = regions.find(static_cast<char*>(p));
  if (it == regions.end()) return;
  munmap(it->second.map, it->second.mapped);
  regions.erase(it);
}
