// SPDX-License-Identifier: Apache-2.0
#include "data/sources/webdataset.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <list>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "base/cancel.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/span.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "data/sources/member_json.hpp"
#include "data/sources/plain_text.hpp"
#include "data/sources/tar_index.hpp"

namespace data {
namespace {

using base::Exit;

// The extension decides the kind of a member's value, as in WebDataset.
enum class MemberKind { bytes, text, integer, texts };
MemberKind kind_of(const std::string& extension) {
  if (extension == "txt" || extension == "text") return MemberKind::text;
  if (extension == "cls" || extension == "id") return MemberKind::integer;
  return MemberKind::bytes;
}
MemberKind kind_of(const MemberName& member) {
  return member.key.empty() ? kind_of(member.extensions.at(0)) : MemberKind::texts;
}

constexpr std::string_view kImageExtensions[] = {"jpg", "jpeg", "png", "webp", "gif"};
bool is_image(std::string_view extension) {
  return std::ranges::count(kImageExtensions, extension) > 0;
}

// Keeps a few shards open: opening is slow on parallel file systems, and descriptors are few.
// Checking whether a file has changed costs a message to a server there, so an open file is checked
// only now and then.
class OpenShards {
 public:
  struct Answer {
    std::shared_ptr<const File> file;
    bool look = false;  // true if it is time to check for changes
  };
  Answer get(const std::string& path, size_t shard) const {
    if (Answer open = known(shard); open.file) return open;
    // Opening is slow, so it runs without the lock. If two threads open one shard, one file is
    // kept.
    auto file = std::make_shared<const File>(path);
    std::lock_guard lock(mutex_);
    if (where_.contains(shard)) return {file};
    recent_.push_front({shard, file, {}});
    where_[shard] = recent_.begin();
    if (recent_.size() > kMost) {
      where_.erase(recent_.back().shard);
      recent_.pop_back();
    }
    return {file};
  }

 private:
  Answer known(size_t shard) const {
    std::lock_guard lock(mutex_);
    auto it = where_.find(shard);
    if (it == where_.end()) return {};
    recent_.splice(recent_.begin(), recent_, it->second);
    Open& open = *it->second;
    bool look = open.looked.seconds() > kLookSeconds;
    if (look) open.looked.restart();
    return {open.file, look};
  }

  static constexpr size_t kMost = 128;
  static constexpr double kLookSeconds = 5;
  struct Open {
    size_t shard;
    std::shared_ptr<const File> file;
    base::Stopwatch looked;
  };
  using Recent = std::list<Open>;
  mutable std::mutex mutex_;
  mutable Recent recent_;
  mutable std::unordered_map<size_t, Recent::iterator> where_;
};

struct Place {
  int64_t offset = -1, size = 0;
};

struct Shard {
  explicit Shard(std::string file) : path(std::move(file)) {}
  std::string path, local;  // the original, for messages; the file that is read
  int64_t first = 0;        // index of its first sample
  int64_t bytes = 0, modified_ns = 0, number = 0, changed_ns = 0;  // of the file that was indexed
  std::vector<std::string> keys;
  std::vector<Place> places;  // [sample][field]
};

class Webdataset : public Source {
 public:
  Webdataset(const WebdatasetOptions& options, const OpenContext& context) {
    for (auto& [field, text] : options.fields) {
      MemberName member = split_member_field(text);
      MemberKind kind = kind_of(member);
      fields_.push_back({field, std::move(member), kind});
    }
    for (std::string& path : options.files()) shards_.emplace_back(std::move(path));
    load_shards(context);
    for (Shard& s : shards_) {
      s.first = size_;
      size_ += int64_t(s.keys.size());
    }
    check_fields(options.path, context.substitutes);
  }

  int64_t size() const override { return size_; }
  std::string summary() const override {
    return shards_.size() == 1 ? "1 tar" : fmt::format("{} tars", shards_.size());
  }

  std::string key(int64_t index) const override {
    auto [shard, sample] = find(index);
    return fmt::format("{}:{}", shards_[shard].path, shards_[shard].keys[sample]);
  }

  // The index holds the keys and the places of all members, which identify the set.
  uint64_t fingerprint() const override {
    Fingerprint print;
    for (const Shard& s : shards_) {
      print.add(s.bytes);
      for (const std::string& key : s.keys) print.add(key);
      for (const Place& p : s.places) print.add(p.offset).add(p.size);
    }
    return print.value();
  }

  Sample read(int64_t index) const override {
    const auto [number, sample] = find(index);
    const std::shared_ptr<const File> file = open_shard(number);
    Sample out;
    for (size_t f = 0; f < fields_.size(); ++f)
      out[fields_[f].name] = member(*file, shards_[number], sample, f);
    return out;
  }
  Value field(int64_t index, const std::string& name) const override {
    const auto [number, sample] = find(index);
    for (size_t f = 0; f < fields_.size(); ++f)
      if (fields_[f].name == name) return member(*open_shard(number), shards_[number], sample, f);
    return Source::field(index, name);
  }

 private:
  struct Field {
    std::string name;
    MemberName member;
    MemberKind kind;
  };

  std::shared_ptr<const File> open_shard(size_t number) const {
    const Shard& shard = shards_[number];
    auto [file, look] = open_.get(shard.local, number);
    // A new name or owner changes only one of `number` and `changed_ns`; another file in its place
    // changes both.
    const bool is_other = file->number() != shard.number && file->changed_ns() != shard.changed_ns;
    if (file->size() != shard.bytes || file->modified_ns() != shard.modified_ns || is_other ||
        (look && file->has_changed()))
      throw Unreadable(
          fmt::format("'{}' has changed since it was indexed: start again", shard.path));
    return file;
  }

  Value member(const File& file, const Shard& shard, size_t sample, size_t f) const {
    const Place place = shard.places[sample * fields_.size() + f];
    if (place.offset < 0) base::fail(Exit::data, "it has no member {}", fields_[f].member.text());
    if (place.size > kMostMemberBytes)
      base::fail(Exit::data, "member {} has {} bytes; at most {} are read",
                 fields_[f].member.text(), place.size, kMostMemberBytes);
    Bytes bytes(size_t(place.size));
    file.read(place.offset, bytes.data(), bytes.size());
    return value(std::move(bytes), fields_[f]);
  }

  static Value value(Bytes bytes, const Field& field) {
    if (field.kind == MemberKind::bytes) return bytes;
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text = without_mark(text);
    if (field.kind == MemberKind::text) return on_one_line(text);
    if (field.kind == MemberKind::texts) return texts_in_json(text, field.member.key);
    Array number(device::DType::i32, {});
    const std::optional<int32_t> known = whole_number(text);
    if (!known)
      base::fail(Exit::data, "member {} holds {}, not a whole number", field.member.text(),
                 base::quoted(text, 20));
    *number.i32() = *known;
    return number;
  }

  std::pair<size_t, size_t> find(int64_t index) const {
    CHECK(index >= 0 && index < size_, "sample {} of {}", index, size_);
    auto it = std::upper_bound(shards_.begin(), shards_.end(), index,
                               [](int64_t i, const Shard& s) { return i < s.first; });
    // Empty shards share their `first` with the next shard; upper_bound skips them.
    size_t shard = size_t(it - shards_.begin()) - 1;
    return {shard, size_t(index - shards_[shard].first)};
  }

  void load_shards(const OpenContext& context) {
    // Ranks begin at different shards. At a first start they share the indexing, through their
    // index files.
    size_t count = shards_.size(),
           begin = count * size_t(base::where().rank) / size_t(std::max(base::where().ranks, 1));
    std::atomic<size_t> next{0};
    std::vector<std::exception_ptr> errors(count);
    auto work = [&] {
      for (size_t i; (i = next++) < count;) {
        size_t s = (begin + i) % count;
        try {
          load_shard(shards_[s], context);
        } catch (...) {
          errors[s] = std::current_exception();
        }
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (int t = 1; t < context.threads && size_t(t) < count; ++t)
        helpers.push_back(base::thread("shards", work));
      work();
    }
    for (const std::exception_ptr& e : errors)
      if (e) std::rethrow_exception(e);
  }

  void load_shard(Shard& shard, const OpenContext& context) {
    base::end_if_asked(context.token);
    base::Span span("open a shard", base::SpanKind::load);
    TarIndex index = load_tar_index(shard.path, context);
    shard.local = context.local(shard.path);
    File file(shard.local);
    shard.bytes = file.size();
    shard.modified_ns = file.modified_ns();
    shard.number = file.number();
    shard.changed_ns = file.changed_ns();
    place_members(shard, index);
    shard.keys = std::move(index.keys);
    std::lock_guard lock(seen_mutex_);
    for (const std::string& e : index.extensions) seen_.insert("." + e);
  }

  // Several fields may read the same JSON member. If a field names several extensions, the first
  // one that a sample has is used.
  void place_members(Shard& shard, const TarIndex& index) const {
    struct Use {
      size_t field, choice;  // choice: index in the field's list of extensions
    };
    std::vector<std::vector<Use>> uses(index.extensions.size());
    for (size_t e = 0; e < index.extensions.size(); ++e)
      for (size_t f = 0; f < fields_.size(); ++f) {
        const std::vector<std::string>& choices = fields_[f].member.extensions;
        auto found = std::find(choices.begin(), choices.end(), index.extensions[e]);
        if (found != choices.end()) uses[e].push_back({f, size_t(found - choices.begin())});
      }
    shard.places.resize(index.keys.size() * fields_.size());
    std::vector<size_t> chosen(shard.places.size(), std::numeric_limits<size_t>::max());
    for (const TarIndex::Member& m : index.members)
      for (auto [f, choice] : uses[m.extension])
        if (size_t at = m.sample * fields_.size() + f; choice < chosen[at]) {
          chosen[at] = choice;
          shard.places[at] = {m.offset, m.size};
        }
  }

  // The index shows missing members, so that a run fails at its start and not after hours.
  void check_fields(const std::string& path, bool substitutes) const {
    if (size_ == 0) base::fail(Exit::data, "'{}' holds no samples", path);
    for (size_t f = 0; f < fields_.size(); ++f) {
      int64_t missing = 0, first = -1;
      for (const Shard& s : shards_)
        for (size_t i = 0; i < s.keys.size(); ++i)
          if (s.places[i * fields_.size() + f].offset < 0)
            if (missing++ == 0) first = s.first + int64_t(i);
      if (missing == 0 || (substitutes && missing < size_)) continue;
      std::vector<std::string> seen(seen_.begin(), seen_.end());
      if (seen.size() > 12) {
        seen.resize(12);
        seen.push_back("...");
      }
      base::fail(Exit::data,
                 "field '{}': {} of {} samples have no member '{}', the first is {}; the shards "
                 "have members: {}{}{}",
                 fields_[f].name, base::with_commas(missing), base::with_commas(size_),
                 fields_[f].member.text(), key(first), base::join(seen, " "),
                 other_images(fields_[f]),
                 missing < size_
                     ? "; with loader.on_bad_sample = \"substitute\" other samples replace them"
                     : "");
    }
  }
  // Returns a hint if the images have further extensions, or "".
  std::string other_images(const Field& field) const {
    std::vector<std::string> choices = field.member.extensions;
    if (!std::ranges::all_of(choices, is_image)) return "";
    size_t named = choices.size();
    for (std::string_view e : kImageExtensions)
      if (seen_.contains(fmt::format(".{}", e)) && std::ranges::count(choices, e) == 0)
        choices.emplace_back(e);
    if (choices.size() == named) return "";
    return fmt::format("; fields = {{ {} = \"{}\" }} takes the first that a sample has", field.name,
                       base::join(choices, ";"));
  }

  std::vector<Field> fields_;
  std::vector<Shard> shards_;
  int64_t size_ = 0;
  std::mutex seen_mutex_;
  std::set<std::string> seen_;
  OpenShards open_;
};

}  // namespace

void WebdatasetOptions::bind(config::Table& t) {
  bind_shards(
      t, "tar shards, plain; \"train-{000..003}.tar\", \"{a,b}.tar\", \"shards/*.tar\" (by name)",
      "field = extension of the member that holds it, { image = \"png\", text = \"txt\" }; "
      "\"jpg;jpeg;png\": the first of these that a sample has, in any capitals; .txt is text, .cls "
      "a number; "
      "\"json:KEY\": the texts under that key of a .json",
      [this](const std::string& field, const std::string& text) {
        return field_problem(field, text);
      });
}

std::string WebdatasetOptions::field_problem(const std::string& field,
                                             const std::string& text) const {
  const MemberName member = split_member_field(text);
  bool json = text.find(':') != std::string::npos;
  for (const std::string& extension : member.extensions)
    if (extension.empty() || extension[0] == '.' ||
        extension.find_first_of("/ ;") != std::string::npos ||
        (json && (extension != "json" || member.key.empty())))
      return fmt::format(
          "'{}' is not a member extension such as \"png\", \"jpg;png\" or \"json:KEY\" (for field "
          "'{}')",
          text, field);
  for (size_t i = 0; i < member.extensions.size(); ++i) {
    const std::string& extension = member.extensions[i];
    if (std::find(member.extensions.begin(), member.extensions.begin() + int64_t(i), extension) !=
        member.extensions.begin() + int64_t(i))
      return fmt::format("'{}' names the member \"{}\" twice", text, extension);
    if (kind_of(extension) != kind_of(member.extensions[0]))
      return fmt::format(
          "'{}': .{} and .{} are read as different kinds, so they cannot be one field", text,
          member.extensions[0], extension);
    for (const auto& [other, more] : fields)
      if (const MemberName& theirs = split_member_field(more);
          other != field && theirs.key == member.key &&
          std::ranges::count(theirs.extensions, extension) > 0)
        return fmt::format("two fields take the member \"{}\"", json ? text : extension);
  }
  return "";
}

Spec WebdatasetOptions::spec() const {
  Spec out;
  for (auto& [field, text] : fields) {
    MemberKind kind = kind_of(split_member_field(text));
    out[field] = kind == MemberKind::bytes   ? FieldSpec::encoded()
                 : kind == MemberKind::text  ? FieldSpec::characters()
                 : kind == MemberKind::texts ? FieldSpec::list_of_texts()
                                             : FieldSpec::array(device::DType::i32, {});
  }
  return out;
}

std::unique_ptr<Source> WebdatasetOptions::open(const OpenContext& context) const {
  return std::make_unique<Webdataset>(*this, context);
}

SourceRow webdataset_row() {
  return {"webdataset", "tar shards, members grouped by name up to the first dot",
          []() -> std::shared_ptr<SourceOptions> { return std::make_shared<WebdatasetOptions>(); }};
}

}  // namespace data
