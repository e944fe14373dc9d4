// SPDX-License-Identifier: Apache-2.0
#include "data/sources/webdataset.hpp"

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "data/sources/member_json.hpp"
#include "data/sources/plain_text.hpp"
#include "data/sources/shard_set.hpp"

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

class Webdataset : public Source {
 public:
  Webdataset(const WebdatasetOptions& options, const OpenContext& context)
      : pattern_(options.path), shards_(options.files(), options.path, context) {
    for (auto& [field, text] : options.fields) {
      MemberName member = split_member_field(text);
      MemberKind kind = kind_of(member);
      fields_.push_back({field, std::move(member), kind});
    }
    warn_of_empty_shards();
    check_fields(options.path, context.substitutes);
  }

  int64_t size() const override { return shards_.list().samples(); }
  std::string summary() const override {
    return shards_.paths().size() == 1 ? "1 tar" : fmt::format("{} tars", shards_.paths().size());
  }

  std::string key(int64_t index) const override {
    const ShardSet::Found found = shards_.find(index);
    return fmt::format("{}:{}", shards_.paths()[found.shard], found.sample.key);
  }

  // The digests of the indexes cover keys and places of all members. The kinds tell which member
  // each field takes.
  uint64_t fingerprint() const override {
    Fingerprint print;
    for (const ShardList::Shard& s : shards_.list().shards())
      print.add(s.state[0]).add(int64_t(s.digest));
    for (const std::vector<uint32_t>& kind : shards_.list().kinds()) {
      std::set<std::string> names;  // in an order that does not depend on how the list was made
      for (uint32_t e : kind) names.insert(shards_.list().extensions()[e]);
      print.add(int64_t(names.size()));
      for (const std::string& name : names) print.add(name);
      for (const Field& f : fields_) print.add(shards_.list().choice(kind, f.member.extensions));
    }
    return print.value();
  }

  uint64_t earlier_fingerprint() const override {
    Fingerprint print;
    std::vector<Place> places;
    for (size_t s = 0; s < shards_.paths().size(); ++s) {
      const ShardList::Shard& shard = shards_.list().shards()[s];
      print.add(shard.state[0]);
      places.clear();
      for (int64_t i = 0; i < shard.samples; ++i) {
        const ShardSet::Found found = shards_.find(s, i);
        print.add(found.sample.key);
        for (size_t f = 0; f < fields_.size(); ++f)
          places.push_back(place(found.index->head(), found.sample, f));
      }
      for (const Place& p : places) print.add(p.offset).add(p.size);
    }
    return print.value();
  }

  Sample read(int64_t index) const override {
    const ShardSet::Found found = shards_.find(index);
    const std::shared_ptr<const File> shard = shards_.open(found.shard);
    Sample out;
    for (size_t f = 0; f < fields_.size(); ++f)
      out[fields_[f].name] = member(*shard, found.index->head(), found.sample, f);
    return out;
  }
  Value field(int64_t index, const std::string& name) const override {
    const ShardSet::Found found = shards_.find(index);
    return member(*shards_.open(found.shard), found.index->head(), found.sample, number_of(name));
  }
  void fields(int64_t begin, int64_t end, const std::string& name,
              const EachValue& each) const override {
    const size_t f = number_of(name);
    shards_.walk(
        begin, end,
        [&](const File& shard, const TarIndexHead& head, const TarIndexFile::Sample& sample) {
          return each(member(shard, head, sample, f));
        });
  }
  std::string folder() const override { return folder_of(shards_.paths()[0]); }
  // Other labels may have members of the same places and sizes, so the states of the shards count.
  std::optional<Origin> origin(const std::string& field) const override {
    Fingerprint print;
    for (const ShardList::Shard& s : shards_.list().shards()) {
      for (int64_t number : s.state) print.add(number);
      print.add(int64_t(s.digest));
    }
    return Origin{fmt::format("{} {}", pattern_, fields_[number_of(field)].member.text()),
                  print.value()};
  }

 private:
  struct Field {
    std::string name;
    MemberName member;
    MemberKind kind;
  };
  struct Place {
    int64_t offset = -1, size = 0;
  };

  size_t number_of(const std::string& name) const {
    const auto found = std::ranges::find(fields_, name, &Field::name);
    CHECK(found != fields_.end(), "the source has no field '{}'", name);
    return size_t(found - fields_.begin());
  }

  // If a field names several extensions, the first one that the sample has is used.
  Place place(const TarIndexHead& head, const TarIndexFile::Sample& sample, size_t f) const {
    for (const std::string& choice : fields_[f].member.extensions)
      for (const TarIndexFile::Member& m : sample.members)
        if (head.extensions[m.extension] == choice) return {m.offset, m.size};
    return {};
  }

  Value member(const File& file, const TarIndexHead& head, const TarIndexFile::Sample& sample,
               size_t f) const {
    const Place place = this->place(head, sample, f);
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

  // An empty shard is not an error, because downloaders write them. A failed copy may be all zeros,
  // which is a valid tar, too.
  void warn_of_empty_shards() const {
    if (base::where().rank != 0) return;
    for (size_t s = 0; s < shards_.paths().size(); ++s)
      if (shards_.list().shards()[s].samples == 0)
        base::log::warning(
            "'{}' is a tar without a single sample; if it should hold some, copy or pack it again",
            shards_.paths()[s]);
  }

  // The list shows missing members, so that a run fails at its start and not after hours.
  void check_fields(const std::string& path, bool substitutes) const {
    if (size() == 0) base::fail(Exit::data, "'{}' holds no samples", path);
    std::set<std::string> seen;
    for (const std::string& e : shards_.list().extensions()) seen.insert("." + e);
    for (const Field& field : fields_) {
      const auto [missing, first] = shards_.list().lacking(field.member.extensions);
      if (missing == 0 || (substitutes && missing < size())) continue;
      std::vector<std::string> shown(seen.begin(), seen.end());
      if (shown.size() > 12) {
        shown.resize(12);
        shown.push_back("...");
      }
      base::fail(Exit::data,
                 "field '{}': {} of {} samples have no member '{}', the first is {}; the shards "
                 "have members: {}{}{}",
                 field.name, base::with_commas(missing), base::with_commas(size()),
                 field.member.text(), key(first), base::join(shown, " "), other_images(field, seen),
                 missing < size()
                     ? "; with loader.on_bad_sample = \"substitute\" other samples replace them"
                     : "");
    }
  }
  // Returns a hint if the images have further extensions, or "".
  static std::string other_images(const Field& field, const std::set<std::string>& seen) {
    std::vector<std::string> choices = field.member.extensions;
    if (!std::ranges::all_of(choices, is_image)) return "";
    size_t named = choices.size();
    for (std::string_view e : kImageExtensions)
      if (seen.contains(fmt::format(".{}", e)) && std::ranges::count(choices, e) == 0)
        choices.emplace_back(e);
    if (choices.size() == named) return "";
    return fmt::format("; fields = {{ {} = \"{}\" }} takes the first that a sample has", field.name,
                       base::join(choices, ";"));
  }

  std::string pattern_;
  std::vector<Field> fields_;
  ShardSet shards_;
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

std::string WebdatasetOptions::lacks_list(const OpenContext& context) const {
  return ShardSet::lacks_list(files(), path, context) ? path : "";
}

std::string WebdatasetOptions::list_share(const OpenContext& context, int rank, int ranks) const {
  return ShardSet::list_share(files(), context, rank, ranks);
}

SourceRow webdataset_row() {
  return {"webdataset", "tar shards, members grouped by name up to the first dot",
          []() -> std::shared_ptr<SourceOptions> { return std::make_shared<WebdatasetOptions>(); }};
}

}  // namespace data
