// SPDX-License-Identifier: Apache-2.0
// Files with named tensors that a new run's parameters may start from ([init] from): a checkpoint
// of ours, .npz, .safetensors. One reader each (checkpoint_reader, npz_reader, safetensors_reader);
// whatever type a file holds, values come out as f32. Readers trust nothing in a file: names,
// types, shapes and places are checked when it is opened, data pass through in pieces, so memory
// stays small whatever a file claims.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/types.hpp"

namespace checkpoint {

struct FileTensor {
  // as it stands in the file, without a leading slash: "params/encoder/pos_embedding"
  std::string name;
  std::vector<int64_t> shape;
  // f32, f64, f16 or bf16; none for anything that cannot be a weight
  std::optional<device::DType> type;
  std::string dtype;      // in the words of the file, for messages: "<f4", "BF16"
  int64_t count() const;  // elements
};
std::string describe(const FileTensor& tensor);  // "params/x <f4[3, 4]"

class WeightFile {
 public:
  virtual ~WeightFile() = default;
  const std::string& path() const { return path_; }
  // In the order in which they lie in the file.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  // The next read begins at the first element of this tensor, which must have a type. Indices may
  // only go up.
  void begin(size_t tensor);
  // The next `count` elements as f32; f64 is rounded, the other types are exact. With the last ones
  // everything the file has to check them with is checked. Error(Exit::checkpoint) names file and
  // tensor.
  void read(float* out, int64_t count);

 protected:
  explicit WeightFile(std::string path) : path_(std::move(path)) {}
  // Adds a tensor whose size has been checked; refuses a name that is there already or is none.
  void add(FileTensor tensor);
  // Error(Exit::checkpoint) with the path in front
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  virtual void seek(size_t tensor) = 0;
  virtual void take(char* to, int64_t bytes) = 0;  // the next bytes of the current tensor
  virtual void finish() {}                         // all of it has been taken
  std::string path_;
  std::vector<FileTensor> tensors_;
  std::optional<size_t> current_;
  int64_t left_ = 0;  // elements
  std::vector<char> buffer_;
};

// By the end of the name: .h5, .npz, .safetensors; a run directory stands for its newest
// checkpoint. Error(Exit::checkpoint) if it cannot be read or is not what it claims to be.
std::unique_ptr<WeightFile> open_weights(const std::string& path);

std::unique_ptr<WeightFile> open_checkpoint_weights(const std::string& path);
std::unique_ptr<WeightFile> open_npz_weights(const std::string& path);
std::unique_ptr<WeightFile> open_safetensors_weights(const std::string& path);

// Elements of a shape that comes from a file; none if a size is negative or the bytes would not fit
// 2^62.
std::optional<int64_t> checked_count(const std::vector<int64_t>& shape);

}  // namespace checkpoint
