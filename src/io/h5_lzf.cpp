// SPDX-License-Identifier: Apache-2.0
// Decodes data that h5py has compressed with "lzf", which is filter 32000 of HDF5. A chunk that
// would not become smaller is stored as it is, and HDF5 does not call the filter for it. The first
// three values of the filter are the filter's version, LZF's version, and the bytes of a chunk.
#include "io/h5_handle.hpp"
#include "io/version.hpp"

#ifdef TRAINER_HAS_LZF
#include <lzf.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#endif

namespace io {
#ifdef TRAINER_HAS_LZF
namespace {

constexpr H5Z_filter_t kLzf = 32000;
// LZF expands 3 bytes to at most 264, so a false size in a file cannot exhaust the memory.
constexpr size_t kLargestRatio = 88;

// Returns the bytes of the decoded chunk, or 0 after a failure, as HDF5 wants it.
size_t decode_lzf(unsigned flags, size_t values, const unsigned* value, size_t bytes,
                  size_t* buffer_bytes, void** buffer) {
  auto failed = [](const char* why) {
    note_filter_problem(why);
    return size_t{0};
  };
  if (!(flags & H5Z_FLAG_REVERSE)) return failed("this program does not compress with lzf");
  constexpr size_t kMost = std::numeric_limits<unsigned>::max();
  if (bytes > kMost) return failed("a chunk of lzf is too large");
  const size_t most = std::min(bytes * kLargestRatio, kMost);
  const size_t claimed = values > 2 ? value[2] : 0;
  // Another filter may have made the chunk smaller than it says, but not larger.
  for (size_t size : {std::min(claimed, most), most}) {
    if (size == 0) continue;
    // HDF5 reads a whole chunk from the buffer, whatever it holds.
    const size_t room = std::max(size, claimed);
    void* const out = H5allocate_memory(room, true);
    if (!out) return failed("no memory for a chunk of lzf");
    errno = 0;
    const unsigned decoded = lzf_decompress(*buffer, unsigned(bytes), out, unsigned(size));
    if (decoded > 0) {
      H5free_memory(*buffer);
      *buffer = out;
      *buffer_bytes = room;
      return decoded;
    }
    H5free_memory(out);
    if (errno != E2BIG) break;
  }
  return failed("a chunk of lzf is damaged");
}

}  // namespace

bool built_with_lzf() { return true; }

void add_filters() {
  const H5Z_class2_t lzf{H5Z_CLASS_T_VERS, kLzf, 0, 1, "lzf", nullptr, nullptr, decode_lzf};
  check_h5(H5Zregister(&lzf), "add the filter lzf", "HDF5");
}
#else
bool built_with_lzf() { return false; }
void add_filters() {}
#endif

}  // namespace io
