// SPDX-License-Identifier: Apache-2.0
#include "job/symbols.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

namespace job {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 && text ? text.get() : name;
}

// Returns where the program was loaded. The first object that the linker lists is the program.
uint64_t load_address() {
  uint64_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uint64_t*>(to) = info->dlpi_addr;
        return 1;
      },
      &address);
  return address;
}

// Returns the `count` structs of type T at this offset of the file; none if it is too short.
template <class T>
std::vector<T> read(std::ifstream& file, uint64_t offset, uint64_t count) {
  std::vector<T> out(count);
  file.clear();
  file.seekg(std::streamoff(offset));
  if (!file.read(reinterpret_cast<char*>(out.data()), std::streamsize(count * sizeof(T))))
    return {};
  return out;
}

// x86 calls by a relative address in five bytes (E8), or by a register or memory in two to seven
// bytes: FF with a middle field of 2.
[[maybe_unused]] bool call_before(const uint8_t* at) {
  if (at[-5] == 0xE8) return true;
  for (int length = 2; length <= 7; ++length)
    if (at[-length] == 0xFF && (at[1 - length] >> 3 & 7) == 2) return true;
  return false;
}

}  // namespace

Symbols::Symbols() : base_(load_address()) {
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (const auto& part = info->dlpi_phdr[i];
              part.p_type == PT_LOAD && part.p_flags & PF_X) {
            const uint64_t begin = info->dlpi_addr + part.p_vaddr;
            static_cast<std::vector<Range>*>(to)->push_back({begin, begin + part.p_memsz});
          }
        return 0;
      },
      &code_);
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::vector<ElfW(Ehdr)> head = read<ElfW(Ehdr)>(file, 0, 1);
  if (head.empty() || std::memcmp(head[0].e_ident, ELFMAG, SELFMAG) != 0) return;
  const auto sections = read<ElfW(Shdr)>(file, head[0].e_shoff, head[0].e_shnum);
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const ElfW(Shdr)& strings = sections[section.sh_link];
    const std::vector<char> names = read<char>(file, strings.sh_offset, strings.sh_size);
    for (const ElfW(Sym) & symbol :
         read<ElfW(Sym)>(file, section.sh_offset, section.sh_size / sizeof(ElfW(Sym))))
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_size > 0 &&
          symbol.st_name < names.size())
        functions_.push_back(
            {symbol.st_value, symbol.st_value + symbol.st_size, &names[symbol.st_name]});
  }
  std::sort(functions_.begin(), functions_.end(),
            [](const Function& a, const Function& b) { return a.begin < b.begin; });
}

std::string Symbols::name_of(const void* address) const {
  const uint64_t at = reinterpret_cast<uint64_t>(address) - base_;
  auto after = std::upper_bound(functions_.begin(), functions_.end(), at,
                                [](uint64_t a, const Function& f) { return a < f.begin; });
  if (after != functions_.begin()) {
    const Function& f = *std::prev(after);
    if (at < f.end) return fmt::format("{} +{:#x}", demangled(f.name.c_str()), at - f.begin);
  }
  Dl_info info{};
  if (!dladdr(address, &info) || !info.dli_fname) return fmt::format("{:#x}", at + base_);
  const char* slash = std::strrchr(info.dli_fname, '/');
  const std::string file = slash ? slash + 1 : info.dli_fname;
  const char* from = static_cast<const char*>(address);
  if (info.dli_sname)
    return fmt::format("{} {} +{:#x}", file, demangled(info.dli_sname),
                       from - static_cast<const char*>(info.dli_saddr));
  return fmt::format("{} +{:#x}", file, from - static_cast<const char*>(info.dli_fbase));
}

bool Symbols::may_return_to(const void* address) const {
  const uint64_t at = reinterpret_cast<uint64_t>(address);
  for (const Range& code : code_) {
    if (at < code.begin + 8 || at >= code.end) continue;
#ifdef __x86_64__
    return call_before(static_cast<const uint8_t*>(address));
#else
    return true;
#endif
  }
  return false;
}

}  // namespace job
