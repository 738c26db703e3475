#include "cpu/dispatch.h"

#include <atomic>
#include <stdexcept>

namespace strata {

namespace generic {
extern const KernelTable table;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable table;
}
namespace avxvnni {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
#endif

namespace {

std::vector<const KernelTable*> find_tables() {
  std::vector<const KernelTable*> tables{&generic::table};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v3")) tables.push_back(&avx2::table);
  if (__builtin_cpu_supports("x86-64-v3") && __builtin_cpu_supports("avxvnni")) tables.push_back(&avxvnni::table);
  if (__builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512vbmi"))
    tables.push_back(&avx512::table);
#endif
  return tables;
}

const std::vector<const KernelTable*>& tables() {
  static const std::vector<const KernelTable*> found = find_tables();
  return found;
}

std::atomic<const KernelTable*>& active() {
  static std::atomic<const KernelTable*> table{tables().back()};
  return table;
}

}  // namespace

std::vector<std::string> isa_levels() {
  std::vector<std::string> names;
  for (const KernelTable* table : tables()) names.push_back(table->level);
  return names;
}

std::string isa_level() { return active().load()->level; }

void set_isa(std::string_view level) {
  std::string known;
  for (const KernelTable* table : tables()) {
    if (level == table->level) return active().store(table);
    known += (known.empty() ? "" : ", ") + std::string(table->level);
  }
  throw std::invalid_argument("instruction set '" + std::string(level) + "' is not available; this processor runs " +
                              known);
}

const KernelEntry* find_kernel(std::string_view name) {
  const KernelTable& table = *active().load();
  for (int i = 0; i < table.count; ++i)
    if (name == table.entries[i].name) return &table.entries[i];
  return nullptr;
}

std::vector<std::string> kernel_names() {
  const KernelTable& table = *active().load();
  std::vector<std::string> names;
  for (int i = 0; i < table.count; ++i) names.push_back(table.entries[i].name);
  return names;
}

}  // namespace strata
