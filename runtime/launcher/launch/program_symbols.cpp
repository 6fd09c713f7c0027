#include "launch/program_symbols.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace dtrain::launcher {
namespace {

constexpr std::uint64_t kMostBytes = 256u << 20;  // of a table

template <typename Item>
std::vector<Item> read_items(std::ifstream& file, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes > kMostBytes) return {};
  std::vector<Item> items(bytes / sizeof(Item));
  file.clear();
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(items.data()), static_cast<std::streamsize>(items.size() * sizeof(Item)));
  if (!file) items.clear();
  return items;
}

}  // namespace

ProgramSymbols::ProgramSymbols(const std::string& name) {
  std::ifstream file(name, std::ios::binary);
  const auto headers = read_items<Elf64_Ehdr>(file, 0, sizeof(Elf64_Ehdr));
  if (headers.empty() || std::memcmp(headers[0].e_ident, ELFMAG, SELFMAG) != 0) return;
  if (headers[0].e_ident[EI_CLASS] != ELFCLASS64 || headers[0].e_shentsize != sizeof(Elf64_Shdr)) return;
  const auto sections =
      read_items<Elf64_Shdr>(file, headers[0].e_shoff, std::uint64_t{headers[0].e_shnum} * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const auto symbols = read_items<Elf64_Sym>(file, section.sh_offset, section.sh_size);
    const Elf64_Shdr& strings = sections[section.sh_link];
    auto names = read_items<char>(file, strings.sh_offset, strings.sh_size);
    if (names.empty()) continue;
    names.back() = '\0';
    for (const Elf64_Sym& symbol : symbols) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0 || symbol.st_name >= names.size()) continue;
      functions_.push_back({symbol.st_value, symbol.st_value + symbol.st_size, names.data() + symbol.st_name});
    }
  }
  std::sort(functions_.begin(), functions_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

std::string ProgramSymbols::at(std::uint64_t address) const {
  const auto after = std::upper_bound(functions_.begin(), functions_.end(), address,
                                      [](std::uint64_t value, const Function& each) { return value < each.begin; });
  if (after == functions_.begin() || address >= std::prev(after)->end) return {};
  return std::prev(after)->name;
}

}  // namespace dtrain::launcher
