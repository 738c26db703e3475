// The loop that both kinds of BPE share: the best merge of two neighbours first, the leftmost on a tie.
#pragma once
#include <cstdint>
#include <queue>
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

// Appends a symbol of `size` bytes; `merge_all` wants the last one's `next` to be -1.
inline void append_symbol(std::vector<Symbol>& symbols, uint32_t begin, uint32_t size, int32_t id) {
  const auto index = static_cast<int32_t>(symbols.size());
  if (index > 0) symbols.back().next = index;
  symbols.push_back({index - 1, -1, begin, size, id});
}

// find(left, right, merge) says whether the two symbols merge, and sets the score and the id.
template <class Find>
void merge_all(std::vector<Symbol>& symbols, Find find) {
  std::priority_queue<Merge> queue;
  const auto propose = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    Merge merge{0, left, right, symbols[left].size + symbols[right].size, -1};
    if (find(symbols[left], symbols[right], merge)) queue.push(merge);
  };
  for (int32_t i = 1; i < static_cast<int32_t>(symbols.size()); ++i) propose(i - 1, i);
  while (!queue.empty()) {
    const Merge best = queue.top();
    queue.pop();
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
