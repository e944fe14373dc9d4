// SPDX-License-Identifier: Apache-2.0
// Reads initial weights from a .safetensors file. The file begins with the length of the header (8
// bytes, little endian) and a JSON header
//   {"__metadata__": {...},
//    "NAME": {"dtype": "F32", "shape": [3, 4], "data_offsets": [begin, end]}, ...}
// and then holds the data. The offsets count from the start of the data. They must cover it without
// gaps or overlaps. Format:
// https://huggingface.co/docs/safetensors (version 0.4).
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/weight_file.hpp"
#include "io/files.hpp"

namespace checkpoint {
namespace {

using Json = nlohmann::json;

// bytes; thousands of tensors need less than 1 MiB
constexpr int64_t kLongestJson = int64_t{16} << 20;
constexpr int kDeepest = 3;  // { "name": { "shape": [ } }

// Bytes of an element, and the type if it can be a weight.
struct Known {
  int64_t bytes;
  std::optional<device::DType> type;
};
const std::map<std::string, Known>& known_types() {
  static const std::map<std::string, Known> all = {
      {"F64", {8, device::DType::f64}},
      {"F32", {4, device::DType::f32}},
      {"F16", {2, device::DType::f16}},
      {"BF16", {2, device::DType::bf16}},
      {"I64", {8, device::DType::i64}},
      {"I32", {4, {}}},
      {"I16", {2, {}}},
      {"I8", {1, {}}},
      {"U64", {8, {}}},
      {"U32", {4, {}}},
      {"U16", {2, {}}},
      {"U8", {1, {}}},
      {"BOOL", {1, {}}},
      {"F8_E4M3", {1, {}}},
      {"F8_E5M2", {1, {}}},
      {"F8_E8M0", {1, {}}},
      {"F8_E4M3FNUZ", {1, {}}},
      {"F8_E5M2FNUZ", {1, {}}},
      {"C64", {8, {}}},
  };
  return all;
}

class SafetensorsReader : public WeightFile {
 public:
  explicit SafetensorsReader(const std::string& path)
      : WeightFile(path), file_(path, io::File::Mode::read) {
    int64_t size = file_.size();
    if (size < 8) refuse(fmt::format("is cut: {} bytes are too few for a .safetensors file", size));
    unsigned char length[8];
    file_.read_at(length, 8, 0);
    uint64_t header = 0;
    for (int i = 7; i >= 0; --i) header = header << 8 | length[i];
    if (header > uint64_t(kLongestJson) || int64_t(header) > size - 8)
      refuse(fmt::format(
          "claims a header of {} bytes in a file of {}: damaged, cut, or not a .safetensors file",
          header, size));
    std::string text(size_t(header), '\0');
    file_.read_at(text.data(), int64_t(header), 8);
    data_ = 8 + int64_t(header);
    list(parse(text), size - data_);
  }

 private:
  Json parse(const std::string& text) const {
    std::set<std::string> names;
    auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
      bool opens =
          event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
      if (opens && depth >= kDeepest) refuse("its header is nested deeper than the format allows");
      if (event == Json::parse_event_t::key && depth == 1 &&
          !names.insert(value.get<std::string>()).second)
        refuse(fmt::format("{} appears twice in its header", value.get<std::string>()));
      return true;
    };
    try {
      Json json = Json::parse(text, watch);
      if (!json.is_object()) refuse("its header is not a JSON object");
      return json;
    } catch (const Json::exception& e) {
      refuse(fmt::format("its header is not JSON: {}", e.what()));
    }
  }

  static int64_t number(const Json& json) {
    if (!json.is_number_unsigned() || json.get<uint64_t>() > uint64_t(INT64_MAX)) return -1;
    return json.get<int64_t>();
  }

  void list(const Json& header, int64_t data_bytes) {
    struct Found {
      int64_t begin, end;
      FileTensor tensor;
    };
    std::vector<Found> all;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      auto bad = [&, at = &name](const std::string& what) {
        refuse(fmt::format("{}: {}", *at, what));
      };
      if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
          !entry.contains("data_offsets"))
        bad("needs dtype, shape and data_offsets");
      const Json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
      auto known =
          dtype.is_string() ? known_types().find(dtype.get<std::string>()) : known_types().end();
      if (known == known_types().end()) bad(fmt::format("unknown dtype {}", dtype.dump()));
      FileTensor t{name, {}, known->second.type, known->first};
      if (!shape.is_array()) bad("its shape is not a list");
      for (const Json& d : shape) t.shape.push_back(number(d));
      std::optional<int64_t> count = checked_count(t.shape);
      if (!count) bad(fmt::format("impossible shape {}", shape.dump()));
      if (!offsets.is_array() || offsets.size() != 2) bad("its data_offsets are not two numbers");
      int64_t begin = number(offsets[0]), end = number(offsets[1]);
      if (begin < 0 || end < begin || end > data_bytes)
        bad(fmt::format("its data_offsets {} lie outside the {} bytes of data: cut or damaged",
                        offsets.dump(), data_bytes));
      if (end - begin != *count * known->second.bytes)
        bad(fmt::format("its data_offsets {} span {} bytes, but {} {} need {}", offsets.dump(),
                        end - begin, known->first, shape.dump(), *count * known->second.bytes));
      all.push_back({begin, end, std::move(t)});
    }
    std::sort(all.begin(), all.end(), [](const Found& a, const Found& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    int64_t at = 0;
    for (Found& f : all) {
      if (f.begin < at)
        refuse(fmt::format(
            "{} overlaps another tensor: it begins at byte {}, the other tensor ends at byte {}",
            f.tensor.name, f.begin, at));
      if (f.begin > at)
        refuse(fmt::format("bytes {} to {} of its data belong to no tensor", at, f.begin));
      at = f.end;
      offsets_.push_back(f.begin);
      add(std::move(f.tensor));
    }
    if (at != data_bytes)
      refuse(fmt::format("its tensors end at byte {}, its data at byte {}", at, data_bytes));
  }

  void seek(size_t tensor) override { at_ = data_ + offsets_[tensor]; }
  void take(char* to, int64_t bytes) override {
    file_.read_at(to, bytes, at_);
    at_ += bytes;
  }

  io::File file_;
  int64_t data_ = 0;  // offset of the data in the file
  std::vector<int64_t> offsets_;
  int64_t at_ = 0;
};

}  // namespace

std::unique_ptr<WeightFile> open_safetensors_weights(const std::string& path) {
  return std::make_unique<SafetensorsReader>(path);
}

}  // namespace checkpoint
