// SPDX-License-Identifier: Apache-2.0
// Replaces npz_reader.cpp, zip_members.cpp and unpack.cpp in programs without libarchive.
#include "base/error.hpp"
#include "checkpoint/unpack.hpp"
#include "checkpoint/weight_file.hpp"
#include "checkpoint/zip_members.hpp"

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

std::vector<ZipMember> zip_members(const std::string&) {
  base::fail(base::Exit::checkpoint,
             "this program was built without libarchive (TRAINER_WITHOUT), which reads files of "
             "torch.save: build it with libarchive, or convert the file to .safetensors");
}

}  // namespace checkpoint
