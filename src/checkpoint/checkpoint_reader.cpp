// SPDX-License-Identifier: Apache-2.0
// Reads initial weights from a checkpoint of this program. Verifies each block by its checksum.
#include "checkpoint/header.hpp"
#include "checkpoint/restore.hpp"
#include "checkpoint/weight_file.hpp"

namespace checkpoint {
namespace {

class CheckpointReader : public WeightFile {
 public:
  explicit CheckpointReader(const std::string& path) : WeightFile(path) {
    try {
      manifest_ = inspect(path, check_header(path).step);
    } catch (const base::Error& e) {
      std::string_view what = e.what();
      if (what.starts_with(path)) throw;
      refuse(what);
    }
    for (const Entry& e : manifest_.layout.entries)
      if (e.name.starts_with(kWeightRoot) || e.name.starts_with(kAverageRoot) ||
          e.name.starts_with(kTeacherRoot))
        add({e.name.substr(1), e.shape, io::dtype_of(e.type), io::name_of(e.type)});
  }

 private:
  void seek(size_t tensor) override {
    current_ = tensor;
    at_ = 0;
  }

  void take(char* to, int64_t bytes) override {
    const FileTensor& t = tensors()[current_];
    int64_t count = bytes / device::size_of(*t.type);
    try {
      read_parts(path(), manifest_,
                 {{.name = "/" + t.name,
                   .type = *t.type,
                   .shape = t.shape,
                   .parts = {{at_, at_ + count, to}}}});
    } catch (const base::Error& e) {
      std::string_view what = e.what();
      if (what.starts_with(path())) throw;
      refuse(what);
    }
    at_ += count;
  }

  Manifest manifest_;
  size_t current_ = 0;
  int64_t at_ = 0;  // next element of the current tensor
};

}  // namespace

std::unique_ptr<WeightFile> open_checkpoint_weights(const std::string& path) {
  return std::make_unique<CheckpointReader>(path);
}

}  // namespace checkpoint
