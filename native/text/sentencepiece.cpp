#include "text/sentencepiece.h"

#include <algorithm>
#include <utility>

namespace strata {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581

size_t character_size(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4; }

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

SentencePiece::SentencePiece(std::vector<std::string> tokens, std::vector<float> scores,
                             const std::vector<int32_t>& apart, const std::array<int32_t, 256>& byte_ids,
                             int32_t unknown_id)
    : tokens_(std::move(tokens)),
      scores_(std::move(scores)),
      ids_(tokens_),
      byte_ids_(byte_ids),
      unknown_id_(unknown_id) {
  for (const int32_t id : apart) ids_.hide(tokens_[id]);
  for (const std::string_view text : tokens_) {
    longest_ = std::max(longest_, text.size());
    for (size_t at = text.find(kSpace, 1); at != text.npos; at = text.find(kSpace, at + 1)) {
      before_space_.insert(character_before(text, at));
    }
  }
}

// No merge crosses two characters that no piece holds side by side, so text is cut before most spaces: the same ids
// from short queues.
std::vector<int32_t> SentencePiece::encode(std::string_view text) const {
  std::vector<int32_t> out;
  Scratch scratch;
  size_t begin = 0;
  for (size_t at = text.find(kSpace, 1); at != text.npos; at = text.find(kSpace, at + 1)) {
    if (before_space_.count(character_before(text, at))) continue;
    encode_part(text.substr(begin, at - begin), scratch, out);
    begin = at;
  }
  if (begin < text.size()) encode_part(text.substr(begin), scratch, out);
  return out;
}

void SentencePiece::encode_part(std::string_view text, Scratch& scratch, std::vector<int32_t>& out) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::min(character_size(static_cast<unsigned char>(text[at])), text.size() - at);
    scratch.append(static_cast<uint32_t>(at), static_cast<uint32_t>(size), find(text.substr(at, size)));
    at += size;
  }
  merge_all(scratch, [&](const Symbol& left, const Symbol&, Merge& merge) {
    merge.id = find(text.substr(left.begin, merge.size));
    if (merge.id < 0) return false;
    merge.score = scores_[merge.id];
    return true;
  });
  for (int32_t i = 0; i >= 0; i = symbols[i].next) {
    if (symbols[i].id >= 0) {
      out.push_back(symbols[i].id);
    } else {
      append_bytes(text.substr(symbols[i].begin, symbols[i].size), out);
    }
  }
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

}  // namespace strata
