// The loop that both kinds of BPE share: the best merge of two neighbours first, the leftmost on a tie.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace strata {

struct Symbol {
  int32_t previous, next;  // -1 at the ends
  uint32_t begin, size;    // bytes of the text; size 0 once merged into the left neighbour
  int32_t id;              // -1 for what is no token
};

struct Merge {
  float score;
  int32_t left, right;
  uint32_t size;  // of both together: tells a merge whose parts have changed since
  int32_t id;
  bool operator<(const Merge& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

// Symbols and the heap of merges of one piece, kept for the next.
struct Scratch {
  std::vector<Symbol> symbols;
  std::vector<Merge> heap;

  void append(uint32_t begin, uint32_t size, int32_t id) {
    const auto index = static_cast<int32_t>(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({index - 1, -1, begin, size, id});
  }
};

// find(left, right, merge) says whether the two symbols merge, and sets the score and the id.
template <class Find>
void merge_all(Scratch& scratch, Find find) {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Merge>& heap = scratch.heap;
  heap.clear();
  const auto propose = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    Merge merge{0, left, right, symbols[left].size + symbols[right].size, -1};
    if (!find(symbols[left], symbols[right], merge)) return;
    heap.push_back(merge);
    std::push_heap(heap.begin(), heap.end());
  };
  for (int32_t i = 1; i < static_cast<int32_t>(symbols.size()); ++i) propose(i - 1, i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Merge best = heap.back();
    heap.pop_back();
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    if (!left.size || !right.size || left.size + right.size != best.size) continue;
    left.size = best.size;
    left.id = best.id;
    left.next = right.next;
    right.size = 0;
    if (right.next >= 0) symbols[right.next].previous = best.left;
    propose(left.previous, best.left);
    propose(best.left, left.next);
  }
}

}  // namespace strata
