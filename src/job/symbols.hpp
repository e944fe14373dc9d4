// SPDX-License-Identifier: Apache-2.0
// Finds the function that contains an address. The program's own symbol table also names functions
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
  // Returns "nn::Block::forward(nn::Context&) +0x1a" or "libmpi.so.40 PMPI_Wait +0x2f". For an
  // address without a name, returns "trainer +0x4f1c", for addr2line.
  std::string name_of(const void* address) const;
  // Returns whether a call may return to this address: it is in loaded code and, on x86, follows a
  // call. A word of a stack that passes is probably a return address, but not certainly.
  bool may_return_to(const void* address) const;

 private:
  struct Range {
    uint64_t begin, end;
  };
  struct Function {
    uint64_t begin, end;
    std::string name;
  };
  std::vector<Function> functions_;  // sorted by begin, relative to the load address
  std::vector<Range> code_;          // of all loaded objects
  uint64_t base_ = 0;
};

}  // namespace job
