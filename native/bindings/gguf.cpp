// Walks over GGUF metadata arrays: bounds of strings and nested arrays, and bulk decoding of string arrays.
#include <cstdint>
#include <cstring>

#include "bindings/bindings.h"

namespace {

enum Fault : int { kFine = 0, kPastEnd = 1, kBadType = 2, kTooDeep = 3, kBadBool = 4 };

struct Walk {
  const uint8_t* data;
  uint64_t size;
  uint64_t at;  // never above size
  Fault fault = kFine;

  template <class T>
  bool read(T& value) {
    if (size - at < sizeof(T)) return fail(kPastEnd);
    std::memcpy(&value, data + at, sizeof(T));
    at += sizeof(T);
    return true;
  }

  bool fail(Fault f) {
    fault = f;
    return false;
  }

  bool skip_string() {
    const uint64_t start = at;
    uint64_t length;
    if (!read(length)) return false;
    if (length > size - at) {
      at = start;
      return fail(kPastEnd);
    }
    at += length;
    return true;
  }

  bool skip_array(int depth);
  bool skip_items(uint32_t type, uint64_t count, int depth);
};

// Bytes of one value of each type id; 0 for strings and arrays, which carry their own length.
constexpr uint8_t kValueBytes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr uint32_t kBool = 7, kString = 8, kArray = 9;

bool Walk::skip_array(int depth) {
  const uint64_t start = at;
  if (depth == 0) return fail(kTooDeep);
  uint32_t type;
  uint64_t count;
  if (!read(type)) return false;
  if (type > 12) {
    at = start;
    return fail(kBadType);
  }
  if (!read(count)) return false;
  // What the smallest item takes bounds the count before any loop runs.
  const uint64_t least = type == kString ? 8 : type == kArray ? 12 : kValueBytes[type];
  if (count > (size - at) / least) {
    at = start + sizeof(type);
    return fail(kPastEnd);
  }
  return skip_items(type, count, depth);
}

bool Walk::skip_items(uint32_t type, uint64_t count, int depth) {
  if (type == kString) {
    for (uint64_t i = 0; i < count; ++i)
      if (!skip_string()) return false;
  } else if (type == kArray) {
    for (uint64_t i = 0; i < count; ++i)
      if (!skip_array(depth - 1)) return false;
  } else {
    if (type == kBool)
      for (uint64_t i = 0; i < count; ++i)
        if (data[at + i] > 1) {
          at += i;
          return fail(kBadBool);
        }
    at += count * kValueBytes[type];
  }
  return true;
}

Walk walk_at(uint64_t address, uint64_t size, uint64_t at) {
  return Walk{reinterpret_cast<const uint8_t*>(address), size, at < size ? at : size};
}

nb::tuple skip_array(uint64_t address, uint64_t size, uint64_t at, int max_depth) {
  Walk walk = walk_at(address, size, at);
  walk.skip_array(max_depth);
  return nb::make_tuple(walk.at, static_cast<int>(walk.fault));
}

// Where each of `count` strings starts (at its length field), and where the last one ends: int64 [count + 1].
bool string_offsets(uint64_t address, uint64_t size, uint64_t at, uint64_t count, uint64_t out) {
  Walk walk = walk_at(address, size, at);
  auto* offsets = reinterpret_cast<int64_t*>(out);
  for (uint64_t i = 0; i < count; ++i) {
    offsets[i] = static_cast<int64_t>(walk.at);
    if (!walk.skip_string()) return false;
  }
  offsets[count] = static_cast<int64_t>(walk.at);
  return true;
}

nb::list decode_strings(uint64_t address, uint64_t offsets_address, uint64_t count) {
  const auto* data = reinterpret_cast<const char*>(address);
  const auto* offsets = reinterpret_cast<const int64_t*>(offsets_address);
  nb::list out = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!out.is_valid()) nb::raise_python_error();
  for (uint64_t i = 0; i < count; ++i) {
    PyObject* text = PyUnicode_DecodeUTF8(data + offsets[i] + 8, offsets[i + 1] - offsets[i] - 8, nullptr);
    if (text == nullptr) nb::raise_python_error();
    PyList_SetItem(out.ptr(), static_cast<Py_ssize_t>(i), text);
  }
  return out;
}

}  // namespace

void bind_gguf(nb::module_& m) {
  m.def("gguf_skip_array", &skip_array, "(end, 0), or (byte, fault) where the array at this byte is malformed.");
  m.def("gguf_string_offsets", &string_offsets, "Fills int64 [count + 1]; false if a string passes the end.");
  m.def("gguf_decode_strings", &decode_strings, "The strings between checked offsets; UnicodeDecodeError.");
}
