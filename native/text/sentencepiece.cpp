#include "text/sentencepiece.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace strata {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581

struct Merge {
  float score;
  int32_t left, right;
  uint32_t size;  // of both together: tells a merge whose parts have changed since
  int32_t id;
  bool operator<(const Merge& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

size_t character_size(unsigned char lead) {
  return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

// The bytes of the character that ends at `end`, packed: a key, not a code point.
uint32_t character_before(std::string_view text, size_t end) {
  uint32_t key = 0;
  for (size_t at = end, shift = 0; at-- > 0 && shift < 32; shift += 8) {
    const auto byte = static_cast<unsigned char>(text[at]);
    key |= static_cast<uint32_t>(byte) << shift;
    if ((byte & 0xc0) != 0x80) break;
  }
  return key;
}

}  // namespace

SentencePiece::SentencePiece(std::vector<std::string> texts, const std::vector<int32_t>& ids,
                             const std::vector<float>& scores, const std::array<int32_t, 256>& byte_ids,
                             int32_t unknown_id)
    : texts_(std::move(texts)), byte_ids_(byte_ids), unknown_id_(unknown_id) {
  pieces_.reserve(texts_.size());
  for (size_t i = 0; i < texts_.size(); ++i) {
    const std::string_view text = texts_[i];
    pieces_.emplace(text, Piece{ids[i], scores[i]});
    longest_ = std::max(longest_, text.size());
    for (size_t at = text.find(kSpace, 1); at != text.npos; at = text.find(kSpace, at + 1)) {
      before_space_.insert(character_before(text, at));
    }
  }
}

const SentencePiece::Piece* SentencePiece::find(std::string_view text) const {
  if (text.size() > longest_) return nullptr;
  const auto found = pieces_.find(text);
  return found == pieces_.end() ? nullptr : &found->second;
}

void SentencePiece::append_bytes(std::string_view symbol, std::vector<int32_t>& out) const {
  const bool spelled = std::all_of(symbol.begin(), symbol.end(),
                                   [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; });
  if (spelled) {
    for (const char c : symbol) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
  } else if (unknown_id_ >= 0) {
    out.push_back(unknown_id_);
  }
}

// No merge crosses a pair of characters that no piece holds side by side, so text is cut before most spaces: the same
// ids from small queues.
std::vector<int32_t> SentencePiece::encode(std::string_view text) const {
  std::vector<int32_t> out;
  size_t begin = 0;
  for (size_t at = text.find(kSpace, 1); at != text.npos; at = text.find(kSpace, at + 1)) {
    if (before_space_.count(character_before(text, at))) continue;
    encode_part(text.substr(begin, at - begin), out);
    begin = at;
  }
  if (begin < text.size()) encode_part(text.substr(begin), out);
  return out;
}

void SentencePiece::encode_part(std::string_view text, std::vector<int32_t>& out) const {
  std::vector<Symbol> symbols = split(text);
  merge(text, symbols);
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    if (symbols[i].id >= 0) {
      out.push_back(symbols[i].id);
    } else {
      append_bytes(text.substr(symbols[i].begin, symbols[i].size), out);
    }
  }
}

std::vector<SentencePiece::Symbol> SentencePiece::split(std::string_view text) const {
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::min(character_size(static_cast<unsigned char>(text[at])), text.size() - at);
    const Piece* piece = find(text.substr(at, size));
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({index - 1, index + 1, static_cast<uint32_t>(at), static_cast<uint32_t>(size),
                       piece ? piece->id : -1});
    at += size;
  }
  symbols.back().next = -1;
  return symbols;
}

void SentencePiece::merge(std::string_view text, std::vector<Symbol>& symbols) const {
  std::priority_queue<Merge> queue;
  const auto propose = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const uint32_t size = symbols[left].size + symbols[right].size;
    if (const Piece* piece = find(text.substr(symbols[left].begin, size))) {
      queue.push({piece->score, left, right, size, piece->id});
    }
  };
  for (size_t i = 1; i < symbols.size(); ++i) propose(static_cast<int32_t>(i) - 1, static_cast<int32_t>(i));
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
