// SPDX-License-Identifier: Apache-2.0
#include "data/sources/hdf5.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "base/cancel.hpp"
#include "base/text.hpp"
#include "data/hint.hpp"
#include "data/sources/file.hpp"
#include "data/sources/plain_text.hpp"
#include "io/h5_rows.hpp"

namespace data {
namespace {

using base::Exit;
using Kind = FieldSpec::Kind;
using io::H5Rows;

// Returns the type as a deck writes it.
std::string declared(const FieldSpec& field) {
  if (field.kind == Kind::bytes) return "bytes";
  return text_of(field);
}

// Returns the field that a dataset's rows become; nothing if they cannot be read. Single whole
// numbers are labels, so they become i32, whatever their width.
std::optional<FieldSpec> natural(const H5Rows& rows) {
  size_t axes = rows.shape().size();
  switch (rows.kind()) {
    case H5Rows::Kind::bytes:
      if (axes == 0) return FieldSpec::encoded();
      break;
    case H5Rows::Kind::text:
      if (axes <= 1) return axes == 0 ? FieldSpec::characters() : FieldSpec::list_of_texts();
      break;
    case H5Rows::Kind::integers:
      return FieldSpec::array(rows.is_u8() && axes > 0 ? device::DType::u8 : device::DType::i32,
                              rows.shape());
    case H5Rows::Kind::floats:
      return FieldSpec::array(device::DType::f32, rows.shape());
    case H5Rows::Kind::other:
      break;
  }
  return std::nullopt;
}

bool fits(const H5Rows& rows, const FieldSpec& field) {
  if (field.kind != Kind::array) return natural(rows) == field;
  if (rows.shape() != field.shape) return false;
  if (field.type == device::DType::u8) return rows.is_u8();
  return rows.kind() ==
         (field.type == device::DType::i32 ? H5Rows::Kind::integers : H5Rows::Kind::floats);
}

// Opens a dataset that can be read. Errors name the file by `path`, even if a copy was opened.
H5Rows open_rows(const io::H5File& h5, const std::string& path, const std::string& field,
                 const std::string& dataset) {
  if (!h5.exists(dataset)) {
    std::vector<std::string> there = h5.datasets();
    if (there.size() > 12) {
      there.resize(12);
      there.push_back("...");
    }
    base::fail(Exit::data, "'{}' has no dataset '{}' (field '{}'){}; there is {}", path, dataset,
               field, nearest_hint(dataset, there), list_of(there));
  }
  H5Rows rows(h5, dataset);
  if (!natural(rows))
    base::fail(Exit::data, "'{}': dataset '{}' (field '{}') is {}, which cannot be read{}", path,
               dataset, field, rows.type_text(), rows.way_out());
  for (auto [bytes, what] : {std::pair{rows.row_bytes(), "rows"}, {rows.chunk_bytes(), "chunks"}})
    if (bytes > kMostMemberBytes)
      base::fail(Exit::data, "'{}': dataset '{}' has {} of {} bytes; at most {} are read", path,
                 dataset, what, bytes, kMostMemberBytes);
  return rows;
}

class Hdf5 : public Source {
 public:
  Hdf5(const Hdf5Options& options, const OpenContext& context) : pattern_(options.path) {
    Spec spec = options.spec();
    for (auto& [name, text] : options.fields) {
      Hdf5Field parsed = parse_hdf5_field(text);
      fields_.push_back({name, parsed.dataset, spec.at(name), parsed.spec.has_value()});
    }
    for (const std::string& path : options.files()) {
      base::end_if_asked(context.token);
      open(path, context.local(path));
    }
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
    for (const File& file : files_) {
      print.add(file.rows).add(file.bytes);
      // Reading all rows would be too slow. These rows distinguish files of one size that were made
      // from different samples.
      for (int64_t row : std::set<int64_t>{0, file.rows / 2, file.rows - 1})
        if (row >= 0 && row < file.rows) add_row(print, file, row);
    }
    return print.value();
  }

  std::string folder() const override { return folder_of(files_[0].path); }
  std::optional<Origin> origin(const std::string& field) const override {
    Fingerprint print;
    for (const File& file : files_) {
      const std::optional<FileState> state = state_at(file.path);
      if (!state) return std::nullopt;
      for (int64_t number : *state) print.add(number);
    }
    return Origin{fmt::format("{} {}", pattern_, fields_[number_of(field)].dataset), print.value()};
  }

  Sample read(int64_t index) const override {
    Sample out;
    for (size_t f = 0; f < fields_.size(); ++f) out[fields_[f].name] = value(index, f);
    return out;
  }
  Value field(int64_t index, const std::string& name) const override {
    return value(index, number_of(name));
  }

 private:
  struct Field {
    std::string name, dataset;
    FieldSpec spec;
    bool typed;  // the deck gives the type, not the first file
  };
  struct File {
    std::string path;
    int64_t first = 0, rows = 0, bytes = 0;
    std::vector<H5Rows> datasets;  // by field
  };

  size_t number_of(const std::string& name) const {
    const auto found = std::ranges::find(fields_, name, &Field::name);
    CHECK(found != fields_.end(), "the source has no field '{}'", name);
    return size_t(found - fields_.begin());
  }

  void add_row(Fingerprint& print, const File& file, int64_t row) const {
    try {
      for (const auto& [name, value] : read(file.first + row)) {
        if (const Array* a = std::get_if<Array>(&value)) print.add(text_view(a->bytes));
        if (const Bytes* b = std::get_if<Bytes>(&value)) print.add(text_view(*b));
        if (const std::string* s = std::get_if<std::string>(&value)) print.add(*s);
        if (const Texts* texts = std::get_if<Texts>(&value))
          for (const std::string& s : *texts) print.add(s);
      }
    } catch (const base::Error& e) {  // a broken sample is reported when its turn comes
      print.add(std::string_view("broken"));
    }
  }
  static std::string_view text_view(const Bytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void open(const std::string& path, const std::string& local) {
    File file{.path = path,
              .first = size_,
              .rows = -1,
              .bytes = data::File(local).size(),
              .datasets = {}};
    try {
      io::H5File h5 = io::H5File::open(local);
      for (const Field& field : fields_) {
        H5Rows rows = open_rows(h5, path, field.name, field.dataset);
        // Parts of such a dataset are in other files, which are not copied with it.
        if (rows.elsewhere() && local != path) return open(path, path);
        check(path, field, rows);
        if (file.rows >= 0 && rows.count() != file.rows)
          base::fail(Exit::data, "'{}': dataset '{}' has {} rows, '{}' has {}", path, field.dataset,
                     rows.count(), fields_[0].dataset, file.rows);
        rows.check_stored(base::where().rank == 0);
        file.rows = rows.count();
        file.datasets.push_back(std::move(rows));
      }
    } catch (const io::Failure& e) {
      base::fail(Exit::data, "{}", e.what());
    }
    size_ += file.rows;
    files_.push_back(std::move(file));
  }

  void check(const std::string& path, const Field& field, const H5Rows& rows) const {
    if (fits(rows, field.spec)) return;
    std::string is = fmt::format("'{}': dataset '{}' is {}", path, field.dataset, rows.type_text());
    if (field.spec.kind == Kind::bytes && rows.kind() == H5Rows::Kind::text)
      base::fail(Exit::data,
                 "{}, and text ends at its first zero byte: store files as lists of bytes, "
                 "variable-length uint8 (h5py.vlen_dtype(numpy.uint8))",
                 is);
    if (!field.typed)
      base::fail(Exit::data, "{}, in '{}' it is {}", is, files_[0].path, declared(field.spec));
    base::fail(Exit::data, "{}, field '{}' says {}: write \"{}: {}\"", is, field.name,
               declared(field.spec), field.dataset.substr(1), declared(*natural(rows)));
  }

  // Fills an array of 32-bit numbers from wider numbers of the file.
  template <class Wide>
  static void narrow(const H5Rows& rows, int64_t row, const Field& field, Array& out) {
    std::vector<Wide> wide(size_t(out.count()));
    rows.read<Wide>(row, wide);
    for (size_t i = 0; i < wide.size(); ++i) {
      if (!std::in_range<int32_t>(wide[i]))
        base::fail(Exit::data, "dataset '{}' holds {}, which does not fit into 32 bits",
                   field.dataset, wide[i]);
      out.i32()[i] = int32_t(wide[i]);
    }
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
        return on_one_line(rows.read_texts(row, kMostMemberBytes).at(0));
      case Kind::texts: {
        Texts texts = rows.read_texts(row, kMostMemberBytes);
        // Rows with fewer texts are padded with empty ones in the file.
        while (!texts.empty() && texts.back().empty()) texts.pop_back();
        for (std::string& text : texts) text = on_one_line(text);
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
      if (rows.is_u64())
        narrow<uint64_t>(rows, row, field, out);
      else
        narrow<int64_t>(rows, row, field, out);
    }
    return out;
  }

  Value value(int64_t index, size_t f) const {
    const File& file = file_of(index);
    try {
      return value(file.datasets[f], index - file.first, fields_[f]);
    } catch (const io::Failure& e) {
      if (e.number() != 0) throw Unreadable(e.what());  // the file system is at fault
      base::fail(Exit::data, "{}", e.what());
    }
  }

  const File& file_of(int64_t index) const {
    CHECK(index >= 0 && index < size_, "sample {} of {}", index, size_);
    // Empty files share their `first` with the next file; upper_bound skips them.
    auto it = std::upper_bound(files_.begin(), files_.end(), index,
                               [](int64_t i, const File& f) { return i < f.first; });
    return *(it - 1);
  }

  std::string pattern_;
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

Hdf5Field parse_hdf5_field(std::string_view text) {
  constexpr const char* kForms = "bytes, text, texts, u8 [64, 64, 3], i32 [16], i32, f32 [...]";
  size_t colon = text.find(':');
  std::string dataset(base::trim(text.substr(0, colon)));
  if (dataset.empty())
    base::fail(Exit::config, "\"{}\" is not \"DATASET: TYPE\" or \"DATASET\"; types: {}", text,
               kForms);
  if (dataset[0] != '/') dataset = "/" + dataset;
  if (colon == text.npos) return {dataset, std::nullopt};
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
  bind_shards(
      t, "HDF5 files, read one after the other; \"train-{000..003}.h5\", \"rows/*.h5\" (by name)",
      "field = \"DATASET\" or \"DATASET: TYPE\", { image = \"images: bytes\", label = \"labels\" "
      "}; types: bytes (whole files), text, texts, u8, i32, f32, with the sizes of a row in "
      "brackets; default: the dataset's own type",
      [](const std::string&, const std::string& text) -> std::string {
        try {
          parse_hdf5_field(text);
        } catch (const base::Error& e) {
          return e.what();
        }
        return "";
      });
}

Spec Hdf5Options::spec() const {
  Spec out;
  std::optional<io::H5File> first;
  try {
    for (auto& [field, text] : fields) {
      Hdf5Field known = parse_hdf5_field(text);
      if (!known.spec) {
        std::string file = files().at(0);
        if (!first) first = io::H5File::open(file);
        known.spec = natural(open_rows(*first, file, field, known.dataset));
      }
      out[field] = *known.spec;
    }
  } catch (const io::Failure& e) {
    base::fail(Exit::data, "{}", e.what());
  }
  return out;
}

std::string Hdf5Options::rows_problem(const std::string& file) const {
  try {
    const io::H5File h5 = io::H5File::open(file);
    for (const auto& [field, text] : fields)
      open_rows(h5, file, field, parse_hdf5_field(text).dataset).check_stored(true);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

std::unique_ptr<Source> Hdf5Options::open(const OpenContext& context) const {
  return std::make_unique<Hdf5>(*this, context);
}

SourceRow hdf5_row() {
  return {"hdf5", "rows of datasets in HDF5 files: arrays, texts, whole image files",
          []() -> std::shared_ptr<SourceOptions> { return std::make_shared<Hdf5Options>(); }};
}

}  // namespace data
