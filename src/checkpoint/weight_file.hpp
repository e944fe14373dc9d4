// SPDX-License-Identifier: Apache-2.0
// Files with named tensors that can initialise a new run's parameters ([init] from): a checkpoint
// of this program or of big_vision, .npz, .safetensors, a file of torch.save, or an index of
// several such files. Each has its reader (checkpoint_reader, zarr_reader, npz_reader,
// safetensors_reader, pth_reader, shards_reader). Values of any type are returned as f32. Readers
// trust nothing in a file. Names, types, shapes and places are checked when the file is opened.
// Data is read in pieces, so a false claim of a file cannot exhaust the memory.
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
  // name in the file, without a leading slash: "params/encoder/pos_embedding"
  std::string name;
  std::vector<int64_t> shape;
  // f32, f64, f16 or bf16, or i64 of a counter; none for anything that cannot be a weight
  std::optional<device::DType> type;
  std::string dtype;      // the file's own name of the type, for messages: "<f4", "BF16"
  int64_t count() const;  // elements
};
std::string describe(const FileTensor& tensor);  // "params/x <f4[3, 4]"

class WeightFile {
 public:
  virtual ~WeightFile() = default;
  const std::string& path() const { return path_; }
  // Returns the root of a trunk's paths if another program's names were translated to ours:
  // "encoder/". Returns "" if the names are the file's own.
  virtual std::string translated_root() const { return ""; }
  // Then: that program, for people, and what stood in front of the trunk's names.
  virtual std::string family() const { return ""; }
  virtual std::string prefix() const { return ""; }
  // Then: true if a ViT has the rotary positions that posemb = "rope" computes.
  virtual bool is_rotary() const { return false; }
  // True for a tensor that no rule translated.
  virtual bool is_stranger(size_t /*tensor*/) const { return false; }
  // In file order.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  // Moves to the first element of a tensor, which must have a type. Indices must increase from call
  // to call.
  void begin(size_t tensor);
  // Reads the next `count` elements as f32; f64 and i64 are rounded, the other types are exact. The
  // last read of a tensor also verifies the checksums that the file has. Error(Exit::checkpoint)
  // names file and tensor.
  void read(float* out, int64_t count);

 protected:
  explicit WeightFile(std::string path) : path_(std::move(path)) {}
  // Adds a tensor whose size has been checked. Refuses an empty or too long name.
  void add(FileTensor tensor);
  // Throws Error(Exit::checkpoint) with the path in front.
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  virtual void seek(size_t tensor) = 0;
  virtual void take(char* to, int64_t bytes) = 0;  // reads the current tensor
  virtual void finish() {}                         // called after the last byte of a tensor
  std::string path_;
  std::vector<FileTensor> tensors_;
  std::optional<size_t> current_;
  int64_t left_ = 0;  // elements
  std::vector<char> buffer_;
  friend class ShardsReader;  // reads other files through their own seek, take and finish
};

// Chooses the reader by the end of the name: .h5, .npz, .safetensors, those of torch.save, or
// .index.json. A run directory means its
// newest valid checkpoint. A folder may also be a checkpoint of big_vision, or that of weights_in.
// Throws Error(Exit::checkpoint) if the file cannot be read or is malformed.
std::unique_ptr<WeightFile> open_weights(const std::string& path);

// Returns the file of weights in a folder that a library or tools/export has made, such as
// model.safetensors; `path` itself if it is no such folder, or if it holds checkpoints.
std::string weights_in(const std::string& path);

// True if the name of the file ends in one of those but .h5, or if weights_in finds such a file.
bool has_weights_alone(const std::string& path);

std::unique_ptr<WeightFile> open_checkpoint_weights(const std::string& path);
std::unique_ptr<WeightFile> open_npz_weights(const std::string& path);
std::unique_ptr<WeightFile> open_safetensors_weights(const std::string& path);
std::unique_ptr<WeightFile> open_pth_weights(const std::string& path);
// Opens the files that an index names, in the index's folder.
std::unique_ptr<WeightFile> open_shards(const std::string& path);
std::unique_ptr<WeightFile> open_zarr_weights(const std::string& folder);

// Returns the folder of a checkpoint of big_vision: `path` itself, or the newest one if the file
// PATH-LAST names it. Returns "" if the path is neither. Throws io::Failure if it cannot be read.
std::string zarr_folder(const std::string& path);

// Returns the number of elements of a shape from a file. Returns none if a size is negative or the
// bytes would exceed 2^62.
std::optional<int64_t> checked_count(const std::vector<int64_t>& shape);

}  // namespace checkpoint
