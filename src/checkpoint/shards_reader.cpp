// SPDX-License-Identifier: Apache-2.0
// Reads initial weights that lie in several files, by the index that Hugging Face's libraries
// write:
//   {"metadata": {...}, "weight_map": {"NAME": "model-00001-of-00002.safetensors", ...}}
// The files lie in the folder of the index. Each is opened by its own reader, and holds just the
// tensors that the index gives it.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.hpp"
#include "checkpoint/weight_file.hpp"
#include "data/sources/file.hpp"
#include "io/files.hpp"

namespace checkpoint {

class ShardsReader : public WeightFile {
 public:
  explicit ShardsReader(const std::string& path) : WeightFile(path) {
    const std::map<std::string, std::string> file_of = read_index();
    const size_t slash = path.rfind('/');
    const std::string folder = slash == path.npos ? "" : path.substr(0, slash + 1);
    std::map<std::string, size_t> shards;  // in the order of their names
    for (const auto& [name, file] : file_of) shards.emplace(file, 0);
    if (shards.size() > kMostShards)
      refuse(fmt::format("names {} files, at most {} are read", shards.size(), kMostShards));
    size_t listed = 0;
    for (auto& [file, place] : shards) {
      place = files_.size();
      files_.push_back(open_weights(folder + file));
      const std::vector<FileTensor>& all = files_.back()->tensors();
      for (size_t t = 0; t < all.size(); ++t) {
        const auto found = file_of.find(all[t].name);
        if (found == file_of.end() || found->second != file)
          refuse(fmt::format("does not list {} under {}, which holds it", all[t].name, file));
        places_.push_back({place, t});
        add(all[t]);
        ++listed;
      }
    }
    std::set<std::string_view> held;
    for (const FileTensor& t : tensors()) held.insert(t.name);
    if (listed != file_of.size())
      for (const auto& [name, file] : file_of)
        if (!held.contains(name))
          refuse(fmt::format("lists {} under {}, which does not hold it", base::quoted(name),
                             base::quoted(file)));
  }

 private:
  static constexpr size_t kMostShards = 500;
  static constexpr int64_t kLongest = int64_t{256} << 20;  // bytes of the index

  std::map<std::string, std::string> read_index() const {
    if (io::File(path(), io::File::Mode::read).size() > kLongest)
      refuse("is too large for an index of weights");
    std::map<std::string, std::string> found;
    try {
      const nlohmann::json json = nlohmann::json::parse(io::read_file(path()));
      for (const auto& [name, file] : json.at("weight_map").items())
        found[name] = file.get<std::string>();
    } catch (const nlohmann::json::exception& e) {
      refuse(fmt::format("is not an index of weights (weight_map: names and their files): {}",
                         e.what()));
    }
    if (found.empty()) refuse("names no tensor");
    for (const auto& [name, file] : found)
      if (file.find('/') != file.npos || !has_weights_alone(file) ||
          data::has_ending(file, ".index.json"))
        refuse(fmt::format(
            "lists {} under {}, which is not a file of weights in the folder of the index",
            base::quoted(name), base::quoted(file)));
    return found;
  }

  void seek(size_t tensor) override {
    const auto [file, index] = places_[tensor];
    current_ = files_[file].get();
    current_->seek(index);
  }
  void take(char* to, int64_t bytes) override { current_->take(to, bytes); }
  void finish() override { current_->finish(); }

  std::vector<std::unique_ptr<WeightFile>> files_;
  std::vector<std::pair<size_t, size_t>> places_;  // of a tensor: its file, its index there
  WeightFile* current_ = nullptr;
};

std::unique_ptr<WeightFile> open_shards(const std::string& path) {
  return std::make_unique<ShardsReader>(path);
}

}  // namespace checkpoint
