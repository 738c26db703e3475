// Ids by token text: open addressing over the texts given, which must stay where they are.
#pragma once
#include <bit>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

class TokenMap {
 public:
  // Empty texts are padding and have no entry. std::invalid_argument when two tokens have one text.
  explicit TokenMap(const std::vector<std::string>& tokens)
      : tokens_(tokens.data()), slots_(std::bit_ceil(2 * tokens.size() + 2), Slot{0, kFree}) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i].empty()) continue;
      Slot& slot = slots_[locate(tokens[i])];
      if (slot.id != kFree) {
        throw std::invalid_argument("tokens[" + std::to_string(slot.id) + "] and [" + std::to_string(i) +
                                    "] are the same text");
      }
      slot = {short_hash(tokens[i]), static_cast<int32_t>(i)};
    }
  }

  // The id, or -1.
  int32_t find(std::string_view text) const { return slots_[locate(text)].id; }

  // From now on there is no such token. Its slot stays taken, so that others are still found behind it.
  void hide(std::string_view text) {
    Slot& slot = slots_[locate(text)];
    if (slot.id != kFree) slot.id = kHidden;
  }

 private:
  struct Slot {
    uint32_t hash;
    int32_t id;
  };
  static constexpr int32_t kFree = -1, kHidden = -2;

  static uint32_t short_hash(std::string_view text) {
    return static_cast<uint32_t>(std::hash<std::string_view>()(text) >> 32);
  }

  // Where the text is, or the free slot where it would be.
  size_t locate(std::string_view text) const {
    const size_t mask = slots_.size() - 1;
    const uint32_t hash = short_hash(text);
    size_t at = hash & mask;
    while (slots_[at].id != kFree) {
      if (slots_[at].hash == hash && slots_[at].id != kHidden && text == tokens_[slots_[at].id]) break;
      at = (at + 1) & mask;
    }
    return at;
  }

  const std::string* tokens_;
  std::vector<Slot> slots_;
};

}  // namespace strata
