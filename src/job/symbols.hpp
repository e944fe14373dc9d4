// SPDX-License-Identifier: Apache-2.0
// Names of the functions that addresses lie in. The program's own symbol table also names functions
// that are local to a file, which the dynamic linker does not know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace job {

class Symbols {
 public:
  // Reads the symbol table of this program. Without one (a stripped program) it stays empty.
  Symbols();
  // Returns "nn::Block::forward(nn::Context&) +0x1a" or "libmpi.so.40 PMPI_Wait +0x2f". What has no
  // name is "trainer +0x4f1c", for addr2line.
  std::string name_of(const void* address) const;

 private:
  struct Function {
    uint64_t begin, end;
    std::string name;
  };
  std::vector<Function> functions_;  // sorted by begin, relative to the load address
  uint64_t base_ = 0;
};

}  // namespace job
