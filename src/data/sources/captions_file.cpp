// SPDX-License-Identifier: Apache-2.0
#include "data/sources/captions_file.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "base/error.hpp"
#include "base/path.hpp"
#include "base/text.hpp"
#include "data/sources/file.hpp"
#include "data/sources/json_text.hpp"
#include "data/sources/plain_text.hpp"
#include "data/sources/safe_name.hpp"

namespace data {
namespace {

using base::Exit;
using nlohmann::json;

constexpr int64_t kMostFileBytes = int64_t{8} << 30;
constexpr size_t kMostCaptionBytes = size_t{1} << 20;

// Returns an id of COCO as text. 7, 7.0 and "7" give the same text.
std::string id_of(const json& object, const char* key) {
  auto it = object.find(key);
  return it == object.end() ? "" : text_of_json(*it).value_or("");
}

void parse_coco(const std::string& path, const json::parser_callback_t& filter) {
  const std::string all = strict_json(read_text_file(path, kMostFileBytes, "captions"));
  try {
    [[maybe_unused]] json nothing = json::parse(all, filter);
  } catch (const json::exception& e) {
    base::fail(
        Exit::data, "'{}' is not the JSON of COCO captions: {}", path,
        base::is_utf8(all) ? base::one_line(e.what()) : "it is not UTF-8 text; save it as UTF-8");
  }
}

}  // namespace

// Collects captions in the order of the files, with the number of their image.
struct CaptionsFile::Collector {
  explicit Collector(CaptionsFile& owner) : file(owner) {}

  Piece put(std::string_view s) {
    Piece p{file.text_.size(), uint32_t(s.size())};
    file.text_ += s;
    return p;
  }
  // `where` names the place in messages.
  void add(std::string_view name, std::string_view caption, const std::string& where) {
    if (caption.size() > kMostCaptionBytes)
      base::fail(Exit::data, "{}: a caption of {} bytes; at most {} are read", where,
                 caption.size(), kMostCaptionBytes);
    auto known = numbers.find(std::string(name));
    if (known == numbers.end()) {
      if (std::string problem = unsafe_name(name); !problem.empty())
        base::fail(Exit::data, "{}: the image name {} {}", where, base::quoted(name), problem);
      if (std::string problem = base::name_problem(name); !problem.empty())
        base::fail(Exit::data, "{}: the image name {}", where, problem);
      known = numbers.emplace(std::string(name), int64_t(numbers.size())).first;
      file.names_.push_back(put(name));
    }
    image.push_back(known->second);
    file.captions_.push_back(put(caption));
  }
  // Sorts the captions by image; their order within an image stays.
  void finish() {
    size_t images = file.names_.size();
    file.first_.assign(images + 1, 0);
    for (int64_t i : image) ++file.first_[size_t(i) + 1];
    std::partial_sum(file.first_.begin(), file.first_.end(), file.first_.begin());
    std::vector<int64_t> next(file.first_.begin(), file.first_.end() - 1);
    std::vector<Piece> sorted(file.captions_.size());
    for (size_t c = 0; c < image.size(); ++c)
      sorted[size_t(next[size_t(image[c])]++)] = file.captions_[c];
    file.captions_ = std::move(sorted);
    file.text_.shrink_to_fit();
  }

  CaptionsFile& file;
  std::unordered_map<std::string, int64_t> numbers;
  std::vector<int64_t> image;
};

bool is_coco(const std::string& path) { return has_ending(path, ".json"); }

CaptionsFile::CaptionsFile(const std::vector<std::string>& paths, const TableColumns& columns) {
  Collector collector(*this);
  for (const std::string& path : paths) {
    size_t before = captions_.size();
    if (is_coco(path))
      read_coco(path, collector);
    else if (is_table(path))
      read_table(path, columns, collector);
    else
      base::fail(Exit::data, "'{}' is neither .tsv, .csv, .jsonl nor .json", path);
    if (captions_.size() == before) base::fail(Exit::data, "'{}' holds no captions", path);
  }
  collector.finish();
}

int64_t CaptionsFile::image_of(int64_t number) const {
  return std::upper_bound(first_.begin(), first_.end(), number) - first_.begin() - 1;
}

void CaptionsFile::read_table(const std::string& path, const TableColumns& columns,
                              Collector& collector) {
  std::string all = read_text_file(path, kMostFileBytes, "captions"), first;
  auto add = [&](std::string_view image, std::string_view caption, int64_t line) {
    if (first.empty()) first = image;
    collector.add(image, caption, fmt::format("'{}' line {}", path, line));
  };
  const TableForm form = read_caption_table(path, all, columns, add);
  if (!form.header && headless_.empty()) headless_ = first;
  unquoted_ += form.unquoted_cells;
}

// Handles each object while the file is parsed and does not keep it. A file of gigabytes then needs
// little more memory than its captions.
void CaptionsFile::read_coco(const std::string& path, Collector& collector) {
  struct Annotation {
    std::string image;
    int64_t number;
    std::string caption;
  };
  std::unordered_map<std::string, std::string> names;
  std::vector<Annotation> annotations;
  std::string section;
  std::unordered_set<std::string> sections;  // sections read so far
  int64_t number = 0;
  auto bad = [&](const std::string& what) {
    base::fail(Exit::data, "'{}': {}[{}] {}", path, section, number, what);
  };
  auto take = [&](const json& object) {
    auto text = [&](const char* key) {
      auto it = object.find(key);
      if (it == object.end() || !it->is_string()) bad(fmt::format("has no text \"{}\"", key));
      return *text_of_json(*it);
    };
    auto id = [&](const char* key) {
      std::string out = id_of(object, key);
      if (out.empty()) bad(fmt::format("has no \"{}\" that is a whole number or a text", key));
      return out;
    };
    if (section == "images") {
      if (!names.emplace(id("id"), text("file_name")).second)
        bad(fmt::format("has the id {}, which another image has, too",
                        base::one_line(id("id"), 60)));
    } else {
      annotations.push_back({id("image_id"), number, on_one_line(text("caption"))});
    }
    ++number;
  };
  auto filter = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) {
      section = parsed.get<std::string>();
      number = 0;
      if (section != "images" && section != "annotations") return false;
      if (!sections.insert(section).second)
        base::fail(Exit::data, "'{}' has two lists \"{}\": join them", path, section);
      return true;
    }
    if (event == json::parse_event_t::key && depth == 3) {
      std::string key = parsed.get<std::string>();
      return key == "id" || key == "file_name" || key == "image_id" || key == "caption";
    }
    if (event == json::parse_event_t::object_end && depth == 2) {
      take(parsed);
      return false;
    }
    return true;
  };
  parse_coco(path, filter);
  section = "annotations";
  std::unordered_set<std::string> used;
  for (const Annotation& a : annotations) {
    number = a.number;
    auto name = names.find(a.image);
    if (name == names.end())
      bad(fmt::format("belongs to image {}, which is not in \"images\"",
                      base::one_line(a.image, 60)));
    used.insert(a.image);
    collector.add(name->second, a.caption, fmt::format("'{}': annotations[{}]", path, number));
  }
  without_ += int64_t(names.size() - used.size());
}

}  // namespace data
