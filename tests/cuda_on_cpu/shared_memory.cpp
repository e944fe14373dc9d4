// SPDX-License-Identifier: Apache-2.0
// The __shared__ variables of kernels. The compiler makes them static variables, which would keep
// the previous block's values. So this file finds them in the program's symbol table and fills them
// with 0xff (NaN or -1) before each block.
#include "shared_memory.hpp"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cuda_runtime.h"
#include "watch.hpp"

namespace cuda_on_cpu {
namespace {

constexpr std::string_view kTag = "B11cuda_shared";

struct Symbols {
  std::vector<SharedVariable> shared;
  std::map<const void*, size_t> bytes_of;  // by kernel
};

// Returns the mangled name of the function that contains a __shared__ variable, or "" for other
// names.
std::string function_around(std::string_view name) {
  const size_t tag = name.find(kTag);
  if (tag == name.npos || name.substr(0, 3) != "_ZZ") return "";
  name = name.substr(0, tag);
  // _ZZ, the function, E, the length of the variable's name, its name
  for (size_t e = name.rfind('E'); e != name.npos && e > 3; e = name.rfind('E', e - 1)) {
    size_t at = e + 1, length = 0;
    for (; at < name.size() && std::isdigit(name[at]); ++at)
      length = length * 10 + size_t(name[at] - '0');
    if (length > 0 && at + length == name.size()) return "_Z" + std::string(name.substr(3, e - 3));
  }
  return "";
}

char* load_address() {
  char* base = nullptr;
  dl_iterate_phdr(
      [](dl_phdr_info* program, size_t, void* out) {  // the program itself comes first
        *static_cast<char**>(out) = reinterpret_cast<char*>(program->dlpi_addr);
        return 1;
      },
      &base);
  return base;
}

// The bytes of the program's file.
class ProgramFile {
 public:
  ProgramFile() {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat about {};
    if (file >= 0 && fstat(file, &about) == 0) {
      bytes_ = size_t(about.st_size);
      data_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (data_ == MAP_FAILED) throw std::runtime_error("cuda_on_cpu: cannot read the program");
  }
  ~ProgramFile() { munmap(data_, bytes_); }
  ProgramFile(const ProgramFile&) = delete;
  template <class T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(static_cast<const char*>(data_) + offset);
  }

 private:
  void* data_ = MAP_FAILED;
  size_t bytes_ = 0;
};

template <class F>
void for_each_symbol(const ProgramFile& file, const F& f) {
  const auto* header = file.at<Elf64_Ehdr>(0);
  const auto* sections = file.at<Elf64_Shdr>(header->e_shoff);
  for (int s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const size_t names = sections[sections[s].sh_link].sh_offset;
    const auto* symbols = file.at<Elf64_Sym>(sections[s].sh_offset);
    for (size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); ++i)
      if (symbols[i].st_size > 0) f(symbols[i], file.at<char>(names + symbols[i].st_name));
  }
}

Symbols read_symbols() {
  Symbols out;
  const ProgramFile file;
  char* const base = load_address();
  std::map<std::string, size_t, std::less<>> by_function;
  for_each_symbol(file, [&](const Elf64_Sym& symbol, std::string_view name) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) return;
    const std::string function = function_around(name);
    if (function.empty()) return;
    out.shared.push_back({base + symbol.st_value, symbol.st_size});
    by_function[function] += symbol.st_size;
  });
  for_each_symbol(file, [&](const Elf64_Sym& symbol, std::string_view name) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || name.substr(0, 2) != "_Z") return;
    if (auto it = by_function.find(name); it != by_function.end())
      out.bytes_of[base + symbol.st_value] = it->second;
  });
  return out;
}

const Symbols& symbols() {
  static const Symbols all = read_symbols();
  return all;
}

bool is_clean(const SharedVariable& v) {
  return uint8_t(v.data[0]) == 0xff && std::memcmp(v.data, v.data + 1, v.bytes - 1) == 0;
}

}  // namespace

size_t static_shared_bytes(const void* kernel) {
  auto it = symbols().bytes_of.find(kernel);
  return it == symbols().bytes_of.end() ? 0 : it->second;
}

const std::vector<SharedVariable>& shared_variables() { return symbols().shared; }

std::string name_of_function(const void* address) {
  std::string mangled = "a kernel";
  const char* base = load_address();
  for_each_symbol(ProgramFile(), [&](const Elf64_Sym& symbol, const char* name) {
    if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && base + symbol.st_value == address)
      mangled = name;
  });
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
  return plain ? plain.get() : mangled;
}

StaticShared::StaticShared() {
  static const bool watched = [] {
    for (const SharedVariable& v : shared_variables())
      watch_memory(v.data, v.bytes, Memory::shared);
    return true;
  }();
  (void)watched;
}

void StaticShared::before_block(size_t number) {
  // All blocks of a launch use the same few variables, nearly always from the first block on.
  if (std::has_single_bit(number) || number == 0)
    for (const SharedVariable& v : shared_variables())
      if (!is_clean(v)) used_.insert(&v);
  for (const SharedVariable* v : used_) std::memset(v->data, 0xff, v->bytes);
}

}  // namespace cuda_on_cpu
