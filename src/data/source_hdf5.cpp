#include "data/source_hdf5.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/brace.hpp"
#include "data/file.hpp"
#include "data/hint.hpp"
#include "io/h5_rows.hpp"

namespace data {
namespace {

using base::Exit;
using Kind = FieldSpec::Kind;
using io::H5Rows;

// As one writes it in the deck.
std::string declared(const FieldSpec& field) {
  if (field.kind == Kind::bytes) return "bytes";
  return text_of(field);
}

// What to write for a dataset, as far as it can be read at all.
std::string readable_as(const H5Rows& rows) {
  auto sized = [&](const char* type) {
    return rows.shape().empty() ? std::string(type) : fmt::format("{} {}", type, text_of(rows.shape()));
  };
  switch (rows.kind()) {
    case H5Rows::Kind::bytes:
      return rows.shape().empty() ? "bytes" : "";
    case H5Rows::Kind::text:
      return rows.shape().empty() ? "text" : rows.shape().size() == 1 ? "texts" : "";
    case H5Rows::Kind::integers:
      return sized(rows.is_u8() ? "u8" : "i32");
    case H5Rows::Kind::floats:
      return sized("f32");
    case H5Rows::Kind::other:
      break;
  }
  return "";
}

bool fits(const H5Rows& rows, const FieldSpec& field) {
  if (field.kind != Kind::array) return readable_as(rows) == declared(field);
  if (rows.shape() != field.shape) return false;
  if (field.type == device::DType::u8) return rows.is_u8();
  return rows.kind() == (field.type == device::DType::i32 ? H5Rows::Kind::integers : H5Rows::Kind::floats);
}

class Hdf5 : public Source {
 public:
  Hdf5(const Hdf5Options& options, const OpenContext& context) {
    for (auto& [field, text] : options.fields) {
      auto [dataset, spec] = parse_hdf5_field(text);
      fields_.push_back({field, dataset, spec});
    }
    for (std::string& path : expand_braces(options.path)) open(path, context.local(path));
    if (size_ == 0) base::fail(Exit::data, "'{}' holds no samples", options.path);
  }

  int64_t size() const override { return size_; }
  std::string summary() const override {
    return files_.size() == 1 ? "1 HDF5 file" : fmt::format("{} HDF5 files", files_.size());
  }
  std::string key(int64_t index) const override {
    const File& file = file_of(index);
    return fmt::format("{}:{}", file.path, index - file.first);
  }

  uint64_t fingerprint() const override {
    Fingerprint print;
    for (const File& file : files_) print.add(file.rows).add(file.bytes);
    return print.value();
  }

  Sample read(int64_t index) const override {
    const File& file = file_of(index);
    Sample out;
    try {
      for (size_t f = 0; f < fields_.size(); ++f)
        out[fields_[f].name] = value(file.datasets[f], index - file.first, fields_[f]);
    } catch (const io::Failure& e) {
      base::fail(Exit::data, "{}", e.what());
    }
    return out;
  }

 private:
  struct Field {
    std::string name, dataset;
    FieldSpec spec;
  };
  struct File {
    std::string path;
    int64_t first = 0, rows = 0, bytes = 0;
    std::vector<H5Rows> datasets;  // by field
  };

  void open(const std::string& path, const std::string& local) {
    File file{.path = path, .first = size_, .rows = -1, .bytes = data::File(local).size(), .datasets = {}};
    try {
      io::H5File h5 = io::H5File::open(local);
      for (const Field& field : fields_) {
        if (!h5.exists(field.dataset)) {
          std::vector<std::string> there = h5.datasets();
          if (there.size() > 12) there.resize(12), there.push_back("...");
          base::fail(Exit::data, "'{}' has no dataset '{}' (field '{}'){}; there is {}", path, field.dataset,
                     field.name, nearest_hint(field.dataset, there), list_of(there));
        }
        H5Rows rows(h5, field.dataset);
        check(path, field, rows);
        if (file.rows >= 0 && rows.count() != file.rows)
          base::fail(Exit::data, "'{}': dataset '{}' has {} rows, '{}' has {}", path, field.dataset, rows.count(),
                     fields_[0].dataset, file.rows);
        file.rows = rows.count();
        file.datasets.push_back(std::move(rows));
      }
    } catch (const io::Failure& e) {
      base::fail(Exit::data, "{}", e.what());
    }
    size_ += file.rows;
    files_.push_back(std::move(file));
  }

  static void check(const std::string& path, const Field& field, const H5Rows& rows) {
    std::string as = readable_as(rows);
    if (!fits(rows, field.spec))
      base::fail(Exit::data, "'{}': dataset '{}' is {}, field '{}' says {}{}", path, field.dataset, rows.type_text(),
                 field.name, declared(field.spec),
                 as.empty() ? "; it cannot be read" : fmt::format(": write \"{}: {}\"", field.dataset.substr(1), as));
    for (auto [bytes, what] : {std::pair{rows.row_bytes(), "rows"}, {rows.chunk_bytes(), "chunks"}})
      if (bytes > kMostMemberBytes)
        base::fail(Exit::data, "'{}': dataset '{}' has {} of {} bytes; at most {} are read", path, field.dataset, what,
                   bytes, kMostMemberBytes);
  }

  static Value value(const H5Rows& rows, int64_t row, const Field& field) {
    switch (field.spec.kind) {
      case Kind::bytes: {
        Bytes bytes;
        rows.read_bytes(row, kMostMemberBytes, [&](size_t n) {
          bytes.reset(n);
          return bytes.data();
        });
        return bytes;
      }
      case Kind::text:
        return rows.read_texts(row, kMostMemberBytes).at(0);
      case Kind::texts: {
        Texts texts = rows.read_texts(row, kMostMemberBytes);
        while (!texts.empty() && texts.back().empty()) texts.pop_back();  // rows with fewer texts are filled up
        return texts;
      }
      case Kind::array:
        break;
    }
    Array out(field.spec.type, field.spec.shape);
    size_t count = size_t(out.count());
    if (out.type == device::DType::u8) rows.read<uint8_t>(row, {out.u8(), count});
    if (out.type == device::DType::f32) rows.read<float>(row, {out.f32(), count});
    if (out.type == device::DType::i32) {
      std::vector<int64_t> wide(count);
      rows.read<int64_t>(row, wide);
      for (size_t i = 0; i < count; ++i) {
        if (wide[i] < std::numeric_limits<int32_t>::min() || wide[i] > std::numeric_limits<int32_t>::max())
          base::fail(Exit::data, "dataset '{}' holds {}, which is no 32-bit number", field.dataset, wide[i]);
        out.i32()[i] = int32_t(wide[i]);
      }
    }
    return out;
  }

  const File& file_of(int64_t index) const {
    CHECK(index >= 0 && index < size_, "sample {} of {}", index, size_);
    // Empty files share their `first` with the next one, which upper_bound passes over.
    auto it =
        std::upper_bound(files_.begin(), files_.end(), index, [](int64_t i, const File& f) { return i < f.first; });
    return *(it - 1);
  }

  std::vector<Field> fields_;
  std::vector<File> files_;
  int64_t size_ = 0;
};

std::vector<int64_t> parse_sizes(std::string_view list, std::string_view whole) {
  std::vector<int64_t> sizes;
  for (const std::string& part : base::split(list, ',')) {
    std::string_view digits = base::trim(part);
    int64_t n = 0;
    auto [stop, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (problem != std::errc() || stop != digits.data() + digits.size() || n < 1 || n > (1 << 24))
      base::fail(Exit::config, "\"{}\": '{}' is not a size", whole, digits);
    sizes.push_back(n);
  }
  int64_t bytes = 4;
  for (int64_t n : sizes)
    if ((bytes *= n) > kMostMemberBytes)
      base::fail(Exit::config, "\"{}\": rows of more than {} bytes", whole, kMostMemberBytes);
  return sizes;
}

}  // namespace

std::pair<std::string, FieldSpec> parse_hdf5_field(std::string_view text) {
  constexpr const char* kForms = "bytes, text, texts, u8 [64, 64, 3], i32 [16], i32, f32 [...]";
  size_t colon = text.find(':');
  std::string dataset(base::trim(text.substr(0, colon)));
  if (colon == text.npos || dataset.empty())
    base::fail(Exit::config, "\"{}\" is not \"DATASET: TYPE\"; types: {}", text, kForms);
  if (dataset[0] != '/') dataset = "/" + dataset;
  std::string_view type = base::trim(text.substr(colon + 1));
  if (type == "bytes") return {dataset, FieldSpec::encoded()};
  if (type == "text") return {dataset, FieldSpec::characters()};
  if (type == "texts") return {dataset, FieldSpec::list_of_texts()};
  size_t bracket = type.find('[');
  std::string_view name = base::trim(type.substr(0, bracket));
  std::vector<int64_t> shape;
  if (bracket != type.npos) {
    if (type.back() != ']') base::fail(Exit::config, "\"{}\": '[' is never closed", text);
    std::string_view list = base::trim(type.substr(bracket + 1, type.size() - bracket - 2));
    if (!list.empty()) shape = parse_sizes(list, text);
  }
  for (device::DType known : {device::DType::u8, device::DType::i32, device::DType::f32})
    if (name == device::name_of(known)) return {dataset, FieldSpec::array(known, shape)};
  base::fail(Exit::config, "\"{}\": '{}' is not a type; types: {}", text, type, kForms);
}

void Hdf5Options::bind(config::Table& t) {
  t.key("path", path, "HDF5 files, read one after the other; \"train-{000..003}.h5\"").required().check([this] {
    try {
      check_braces(path);
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return path.empty() ? std::string("is empty") : std::string();
  });
  t.key("fields", fields,
        "field = \"DATASET: TYPE\", { image = \"images: bytes\", labels = \"labels: i32 [16]\" }; types: bytes (whole "
        "files), text, texts, u8, i32, f32, with the sizes of a row in brackets")
      .required()
      .check([this]() -> std::string {
        if (fields.empty()) return "names no field";
        try {
          spec();
        } catch (const base::Error& e) {
          return e.what();
        }
        return "";
      });
}

Spec Hdf5Options::spec() const {
  Spec out;
  for (auto& [field, text] : fields) out[field] = parse_hdf5_field(text).second;
  return out;
}

std::vector<std::string> Hdf5Options::files() const { return expand_braces(path); }

std::unique_ptr<Source> Hdf5Options::open(const OpenContext& context) const {
  return std::make_unique<Hdf5>(*this, context);
}

SourceRow hdf5_row() {
  return {"hdf5", "rows of datasets in HDF5 files: arrays, texts, whole image files",
          []() -> std::shared_ptr<SourceOptions> { return std::make_shared<Hdf5Options>(); }};
}

}  // namespace data
