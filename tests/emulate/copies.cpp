// The other half of runtime.cpp: asynchronous copies. With an even seed they are made at once, so that one which overwrites what is
// still read shows; with an odd one when their thread waits for them, so that a read before that shows.

struct Copy {
  void* to;
  const void* from;
  int nbytes;
};
struct Copies {
  std::vector<Copy> pending;
  std::vector<size_t> groups;  // where each group ends
};
static Copies copies[kMaxThreads];

// The first `count` copies, which end the first `groups` groups.
static void complete(Copies& mine, size_t count, size_t groups) {
  for (size_t i = 0; i < count; ++i) memcpy(mine.pending[i].to, mine.pending[i].from, mine.pending[i].nbytes);
  mine.pending.erase(mine.pending.begin(), mine.pending.begin() + static_cast<int>(count));
  mine.groups.erase(mine.groups.begin(), mine.groups.begin() + static_cast<int>(groups));
  for (size_t& end : mine.groups) end -= count;
}

extern "C" void emulated_copy(void* to, const void* from, int nbytes) {
  if (seed % 2 == 0) return static_cast<void>(memcpy(to, from, nbytes));
  copies[current].pending.push_back({to, from, nbytes});
}

extern "C" void emulated_copy_group() {
  if (seed % 2 != 0) copies[current].groups.push_back(copies[current].pending.size());
}

// All copies of the calling thread, or (`left` not negative) those of all groups but the newest `left`.
extern "C" void emulated_copy_wait(int left) {
  Copies& mine = copies[current];
  const size_t groups = mine.groups.size();
  if (left < 0)
    complete(mine, mine.pending.size(), groups);
  else if (groups > static_cast<size_t>(left))
    complete(mine, mine.groups[groups - left - 1], groups - static_cast<size_t>(left));
}

static void begin_copies() { copies[current] = {}; }

static void end_copies() {
  if (!copies[current].pending.empty()) fail("a thread ends with %zu copies on their way", copies[current].pending.size());
}
