// SPDX-License-Identifier: Apache-2.0
// Reads initial weights from a checkpoint of big_vision: a folder with a zarr array (version 2) for
// each tensor, as TensorStore writes it (cappa.md 7.1, 7.2). The folder params~encoder~cls is the
// tensor params/encoder/cls. It has the file .zarray,
//   {"zarr_format": 2, "shape": [4, 6], "chunks": [2, 6], "dtype": "<f4", "order": "C",
//    "compressor": {"id": "zstd"}, "fill_value": null, "filters": null}
// and one file per chunk, which the chunk's place names: "0.0", "1.0". A chunk at the edge of the
// tensor has the full size; the values beyond the edge are ignored. The format has no checksums.
#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "checkpoint/npy_header.hpp"
#include "checkpoint/unpack.hpp"
#include "checkpoint/weight_file.hpp"
#include "io/files.hpp"

namespace checkpoint {
namespace {

using Json = nlohmann::json;
using Sizes = std::vector<int64_t>;

constexpr const char* kDescription = ".zarray";
constexpr int64_t kLongestDescription = 1 << 16;  // bytes
constexpr int kDeepestValue = 8;
constexpr size_t kMostAxes = 32;

struct ZarrArray {
  std::string folder;
  Sizes shape, chunks;  // equally long; a scalar has one axis of length 1 here
  bool packed = false;  // by zstd
  char separator = '.';
  std::string fill;  // text of fill_value; only its zeros can replace a chunk that is missing
};

class ZarrReader : public WeightFile {
 public:
  explicit ZarrReader(const std::string& path) : WeightFile(path) {
    for (const std::string& name : io::list_directory(path)) {
      const std::string folder = path + "/" + name;
      if (!io::is_directory(folder)) continue;
      if (!io::exists(folder + "/" + kDescription))
        refuse(fmt::format("{} has no {}: the checkpoint was cut, or is not one of big_vision",
                           name, kDescription));
      list(name);
    }
  }

 private:
  // Reads the description of an array and adds its tensor.
  void list(const std::string& name) {
    ZarrArray array;
    array.folder = path() + "/" + name;
    const std::string file = array.folder + "/" + kDescription;
    if (io::File(file, io::File::Mode::read).size() > kLongestDescription)
      refuse(fmt::format("{}/{} is too large for the description of an array", name, kDescription));
    auto bad = [&](const std::string& what) {
      refuse(fmt::format("{}/{}: {}", name, kDescription, what));
    };
    // Messages print values by recursion.
    auto watch = [&](int depth, Json::parse_event_t, const Json&) {
      if (depth > kDeepestValue) bad("is nested deeper than the format allows");
      return true;
    };
    const Json json = Json::parse(io::read_file(file), watch, false);
    if (!json.is_object()) bad("is not a JSON object");
    auto text_of = [&](const char* key) { return json.contains(key) ? json[key].dump() : "null"; };
    if (text_of("zarr_format") != "2") bad("zarr_format is not 2");
    if (text_of("order") != "\"C\"") bad("order is not \"C\"");
    if (text_of("filters") != "null") bad("has filters, which are not read");
    array.shape = sizes(json, "shape", bad);
    array.chunks = sizes(json, "chunks", bad);
    if (array.chunks.size() != array.shape.size()) bad("shape and chunks differ in length");
    for (size_t axis = 0; axis < array.shape.size(); ++axis)
      if (array.chunks[axis] < 1 || array.chunks[axis] > std::max<int64_t>(1, array.shape[axis]))
        bad(fmt::format("impossible chunks {} of shape {}", text_of("chunks"), text_of("shape")));
    const Json compressor = json.value("compressor", Json());
    array.packed = !compressor.is_null();
    if (array.packed && (!compressor.is_object() || text(compressor, "id") != "zstd"))
      bad(fmt::format("compressor {}; zstd and none are read", compressor.dump()));
    const std::string separator =
        json.contains("dimension_separator") ? text(json, "dimension_separator") : std::string(".");
    if (separator != "." && separator != "/") bad("dimension_separator is neither . nor /");
    array.separator = separator[0];
    array.fill = text_of("fill_value");

    const std::string dtype = text(json, "dtype");
    FileTensor tensor{name, array.shape, weight_type(dtype), dtype};
    std::replace(tensor.name.begin(), tensor.name.end(), '~', '/');
    if (!checked_count(array.shape)) bad(fmt::format("impossible shape {}", text_of("shape")));
    if (array.shape.empty()) {
      array.shape = {1};
      array.chunks = {1};
    }
    arrays_.push_back(std::move(array));
    add(std::move(tensor));
  }

  static std::string text(const Json& json, const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  }

  template <class Bad>
  static Sizes sizes(const Json& json, const char* key, const Bad& bad) {
    Sizes out;
    const Json list = json.value(key, Json());
    if (!list.is_array() || list.size() > kMostAxes)
      bad(fmt::format("{} is not a list of sizes", key));
    for (const Json& size : list) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > uint64_t(INT64_MAX))
        bad(fmt::format("impossible {} {}", key, list.dump()));
      out.push_back(size.get<int64_t>());
    }
    return out;
  }

  void seek(size_t tensor) override {
    current_ = tensor;
    row_ = 0;
    rows_.clear();
    at_ = 0;
  }

  void take(char* to, int64_t bytes) override {
    while (bytes > 0) {
      if (at_ == int64_t(rows_.size())) load_rows();
      const int64_t n = std::min(bytes, int64_t(rows_.size()) - at_);
      std::memcpy(to, rows_.data() + at_, size_t(n));
      to += n;
      at_ += n;
      bytes -= n;
    }
  }

  // Loads all chunks that share the next place on the first axis: whole rows of the tensor.
  void load_rows() {
    const ZarrArray& array = arrays_[current_];
    const int64_t size = device::size_of(*tensors()[current_].type);
    Sizes slab = array.shape;
    slab[0] = std::min(array.chunks[0], array.shape[0] - row_ * array.chunks[0]);
    int64_t chunk_bytes = size, slab_bytes = size;
    for (size_t axis = 0; axis < slab.size(); ++axis) {
      chunk_bytes *= array.chunks[axis];
      slab_bytes *= slab[axis];
    }
    rows_.clear();
    Sizes place(slab.size(), 0);
    place[0] = row_;
    while (true) {
      const std::string chunk = read_chunk(array, place, chunk_bytes);
      rows_.resize(size_t(slab_bytes));
      copy(array, slab, place, chunk, size);
      size_t axis = slab.size() - 1;
      while (axis > 0 && (place[axis] + 1) * array.chunks[axis] >= slab[axis]) place[axis--] = 0;
      if (axis == 0) break;
      ++place[axis];
    }
    ++row_;
    at_ = 0;
  }

  // Copies the part of a chunk that is inside the tensor to its place in rows_.
  void copy(const ZarrArray& array, const Sizes& slab, const Sizes& place, const std::string& chunk,
            int64_t size) {
    const size_t last = slab.size() - 1;
    Sizes first(slab.size()), count(slab.size()), at(slab.size(), 0);
    for (size_t axis = 0; axis <= last; ++axis) {
      first[axis] = axis == 0 ? 0 : place[axis] * array.chunks[axis];
      count[axis] = std::min(array.chunks[axis], slab[axis] - first[axis]);
    }
    while (true) {
      int64_t from = 0, to = 0;
      for (size_t axis = 0; axis <= last; ++axis) {
        from = from * array.chunks[axis] + at[axis];
        to = to * slab[axis] + first[axis] + at[axis];
      }
      std::memcpy(rows_.data() + to * size, chunk.data() + from * size, size_t(count[last] * size));
      size_t axis = last;
      while (axis > 0 && at[axis - 1] + 1 == count[axis - 1]) at[--axis] = 0;
      if (axis == 0) return;
      ++at[axis - 1];
    }
  }

  std::string read_chunk(const ZarrArray& array, const Sizes& place, int64_t bytes) const {
    const std::string name = fmt::format("{}", fmt::join(place, std::string(1, array.separator)));
    const std::string file = array.folder + "/" + name;
    const std::string& tensor = tensors()[current_].name;
    if (!io::exists(file)) {
      if (array.fill != "0" && array.fill != "0.0")
        refuse(fmt::format("{}: chunk {} is missing: the checkpoint was cut, or never finished",
                           tensor, name));
      return std::string(size_t(bytes), '\0');
    }
    Unpacked chunk{io::read_file(file), ""};
    if (array.packed) chunk = unpack_zstd(chunk.bytes, bytes);
    if (!chunk.problem.empty()) refuse(fmt::format("{}: chunk {} {}", tensor, name, chunk.problem));
    if (int64_t(chunk.bytes.size()) != bytes)
      refuse(
          fmt::format("{}: chunk {} does not hold the {} bytes of its description: cut or damaged",
                      tensor, name, bytes));
    if (is_big_endian(tensors()[current_].dtype))
      reverse_bytes(chunk.bytes.data(), bytes, device::size_of(*tensors()[current_].type));
    return std::move(chunk.bytes);
  }

  std::vector<ZarrArray> arrays_;  // by tensor
  size_t current_ = 0;
  int64_t row_ = 0;         // next place of a chunk on the first axis
  std::vector<char> rows_;  // rows that are loaded
  int64_t at_ = 0;          // bytes of rows_ already returned
};

}  // namespace

std::string zarr_folder(const std::string& path) {
  // big_vision writes the suffix of the newest complete checkpoint into PATH-LAST.
  if (const std::string last = path + "-LAST"; io::exists(last) && !io::is_directory(last)) {
    const std::string suffix(base::trim(io::read_file(last)));
    const std::string folder = path + "-" + suffix;
    if (suffix.empty() || suffix.find('/') != suffix.npos || !io::is_directory(folder))
      base::fail(base::Exit::checkpoint, "{}: names {}, which is not a folder", last,
                 base::quoted(folder, 200));
    return folder;
  }
  if (!io::is_directory(path)) return "";
  for (const std::string& name : io::list_directory(path))
    if (io::exists(path + "/" + name + "/" + kDescription)) return path;
  return "";
}

std::unique_ptr<WeightFile> open_zarr_weights(const std::string& path) {
  return std::make_unique<ZarrReader>(path);
}

}  // namespace checkpoint
