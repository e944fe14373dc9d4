// SPDX-License-Identifier: Apache-2.0
// Replaces npz_reader.cpp and unpack.cpp in programs without libarchive.
#include "base/error.hpp"
#include "checkpoint/unpack.hpp"
#include "checkpoint/weight_file.hpp"

namespace checkpoint {

bool built_with_archive() { return false; }

Unpacked unpack_zstd(const std::string&, int64_t) {
  return {"",
          "is compressed by zstd, and this program was built without libarchive "
          "(TRAINER_WITHOUT): build it with libarchive"};
}

std::unique_ptr<WeightFile> open_npz_weights(const std::string& path) {
  base::fail(base::Exit::checkpoint,
             "{}: this program was built without libarchive (TRAINER_WITHOUT), which reads .npz: "
             "build it with libarchive, or convert the file to .safetensors",
             path);
}

}  // namespace checkpoint
