// SPDX-License-Identifier: Apache-2.0
// Reads initial weights from a .npz file: a zip archive of NumPy arrays, stored or deflated.
// libarchive reads the archive. An array begins with "\x93NUMPY", version, length of the header and
// a Python dictionary,
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
// and ends with the elements. Format: numpy.lib.format, versions 1 to 3. bfloat16 is stored as
// two-byte void (cappa.md 7.3). Arrays of objects are pickles, which can run any code when they are
// read. A file with one is refused as a whole.
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "checkpoint/npy_header.hpp"
#include "checkpoint/weight_file.hpp"
#include "data/sources/tar_reader.hpp"
#include "io/files.hpp"

namespace checkpoint {
namespace {

constexpr uint32_t kLongestHeader = 1 << 16;
constexpr int64_t kRawPiece = int64_t{16} << 20;  // bytes

class NpzReader : public WeightFile {
 public:
  explicit NpzReader(const std::string& path) : WeightFile(path) {
    open();
    std::set<std::string> names;
    for (size_t member = 0; next(); ++member) {
      std::string name = name_of(entry_);
      // Folders, and what a file manager adds when it packs the arrays again.
      if (name.ends_with('/') || data::is_hidden_member(name)) continue;
      if (!name.ends_with(".npy")) refuse(fmt::format("member '{}' is not an array (.npy)", name));
      name.resize(name.size() - 4);
      if (!names.insert(name).second) refuse(fmt::format("'{}' appears twice", name));
      list(name, member);
    }
    open();
  }

 private:
  struct Close {
    void operator()(archive* a) const { archive_read_free(a); }
  };

  void open() {
    // File refuses a pipe, at which libarchive would block until a writer opens it
    io::File regular(path(), io::File::Mode::read);
    archive_.reset(archive_read_new());
    CHECK(archive_, "libarchive gives no reader");
    member_ = -1;
    // The seekable reader gets names and sizes from the directory at the end of the file and skips
    // members by seeking.
    if (archive_read_support_format_zip_seekable(archive_.get()) != ARCHIVE_OK ||
        archive_read_open_filename(archive_.get(), path().c_str(), 1 << 20) != ARCHIVE_OK)
      broken("is not a .npz file, or was cut");
  }

  [[noreturn]] void broken(const std::string& what) const {
    const char* why = archive_error_string(archive_.get());
    refuse(fmt::format("{}{}", what, why ? fmt::format(" (zip: {})", why) : ""));
  }

  bool next() {
    int result = archive_read_next_header(archive_.get(), &entry_);
    if (result == ARCHIVE_EOF) return false;
    if (result != ARCHIVE_OK) broken("is not a .npz file, or was cut");
    ++member_;
    return true;
  }

  static std::string name_of(archive_entry* entry) {
    const char* name = archive_entry_pathname_utf8(entry);
    if (!name) name = archive_entry_pathname(entry);
    return name ? name : "";
  }

  void get(const std::string& name, char* to, int64_t bytes) {
    while (bytes > 0) {
      la_ssize_t n = archive_read_data(archive_.get(), to, size_t(bytes));
      if (n < 0) broken(fmt::format("'{}' is damaged", name));
      if (n == 0) refuse(fmt::format("'{}' is cut: {} bytes are missing", name, bytes));
      to += n;
      bytes -= n;
    }
  }

  // Reads the header of the current member and adds its tensor.
  void list(const std::string& name, size_t member) {
    // NumPy writes only these two. libarchive supports more, and some of them allocate as much
    // memory as the file claims.
    std::string_view format = archive_format_name(archive_.get());
    if (!format.ends_with("(uncompressed)") && !format.ends_with("(deflation)"))
      refuse(fmt::format("'{}' is compressed in a way that NumPy does not know: {}", name, format));
    unsigned char start[12];
    get(name, reinterpret_cast<char*>(start), 8);
    if (std::memcmp(start, "\x93NUMPY", 6) != 0)
      refuse(fmt::format("'{}' does not begin as a NumPy array", name));
    int version = start[6], width = version == 1 ? 2 : 4;
    if (version < 1 || version > 3)
      refuse(fmt::format("'{}' has format version {}; 1 to 3 are known", name, version));
    get(name, reinterpret_cast<char*>(start + 8), width);
    uint32_t length = start[8] | uint32_t(start[9]) << 8;
    if (width == 4) length |= uint32_t(start[10]) << 16 | uint32_t(start[11]) << 24;
    if (length > kLongestHeader)
      refuse(fmt::format("'{}' claims a header of {} bytes", name, length));
    std::string text(length, '\0');
    get(name, text.data(), length);

    NpyHeader header;
    try {
      header = parse_npy_header(text);
    } catch (const base::Error& e) {
      refuse(fmt::format("'{}': {}", name, e.what()));
    }
    if (header.descr == "O" || header.descr.find("|O") != std::string::npos)
      refuse(
          fmt::format("'{}' holds pickled Python objects, which are never read (they could run any "
                      "code); save it as an array of numbers",
                      name));
    FileTensor t{name, header.shape, weight_type(header.descr), header.descr};
    std::optional<int64_t> count = checked_count(header.shape);
    if (!count)
      refuse(
          fmt::format("'{}' has the impossible shape [{}]", name, fmt::join(header.shape, ", ")));
    if (t.type) {
      int64_t begins = 8 + width + int64_t(length),
              needs = begins + *count * device::size_of(*t.type);
      int64_t there = archive_entry_size_is_set(entry_) ? archive_entry_size(entry_) : -1;
      if (there != needs)
        refuse(fmt::format("{}: the array needs {} bytes, the member has {}: cut or damaged",
                           describe(t), needs, there));
      places_.push_back({member, begins, header.fortran, is_big_endian(header.descr)});
    } else {
      places_.push_back({member, 0, false, false});
    }
    add(std::move(t));
  }

  void seek(size_t tensor) override {
    while (member_ < int64_t(places_[tensor].member))
      if (!next()) refuse("has fewer members than a moment ago");
    current_ = tensors()[tensor].name;
    if (name_of(entry_) != current_ + ".npy") refuse("has changed while it was read");
    char header[4096];
    for (int64_t left = places_[tensor].begins; left > 0;) {
      int64_t n = std::min<int64_t>(left, sizeof header);
      get(current_, header, n);
      left -= n;
    }
    reordered_.clear();
    returned_ = 0;
    swap_ = places_[tensor].swapped ? device::size_of(*tensors()[tensor].type) : 0;
    if (places_[tensor].fortran) reorder(tensors()[tensor]);
  }
  void take(char* to, int64_t bytes) override {
    if (reordered_.empty()) {
      get(current_, to, bytes);
    } else {
      std::memcpy(to, reordered_.data() + returned_, size_t(bytes));
      returned_ += bytes;
    }
    if (swap_) reverse_bytes(to, bytes, swap_);
  }

  // Reads a whole array in Fortran order (first axis fastest) and stores it in C order (last axis
  // fastest).
  void reorder(const FileTensor& t) {
    int64_t count = t.count(), size = device::size_of(*t.type), strides = 1;
    std::vector<char> raw;
    // Memory grows with the bytes that the file really has, not with the claimed size.
    for (int64_t bytes = count * size; int64_t(raw.size()) < bytes;) {
      int64_t n = std::min(kRawPiece, bytes - int64_t(raw.size()));
      raw.resize(raw.size() + size_t(n));
      get(t.name, raw.data() + raw.size() - n, n);
    }
    std::vector<int64_t> stride, at(t.shape.size(), 0);
    for (int64_t d : t.shape) {
      stride.push_back(strides);
      strides *= d;
    }
    reordered_.resize(raw.size());
    int64_t from = 0;
    for (int64_t to = 0; to < count; ++to) {
      std::memcpy(reordered_.data() + to * size, raw.data() + from * size, size_t(size));
      for (size_t axis = at.size(); axis-- > 0;) {
        from += stride[axis];
        if (++at[axis] < t.shape[axis]) break;
        from -= stride[axis] * t.shape[axis];
        at[axis] = 0;
      }
    }
  }
  // libarchive compares checksum and size at the end of a member.
  void finish() override {
    char more;
    la_ssize_t n = archive_read_data(archive_.get(), &more, 1);
    if (n < 0) broken(fmt::format("'{}' is damaged", current_));
    if (n > 0) refuse(fmt::format("'{}' holds more than its header says", current_));
  }

  struct Place {
    size_t member;
    int64_t begins;  // bytes before the elements
    bool fortran;    // first axis fastest
    bool swapped;    // most significant byte first
  };
  std::unique_ptr<archive, Close> archive_;
  archive_entry* entry_ = nullptr;  // owned by libarchive
  int64_t member_ = -1;             // index of the current member
  std::vector<Place> places_;
  std::string current_;
  std::vector<char> reordered_;  // the current array in C order, if the file has Fortran order
  int64_t returned_ = 0;         // bytes of reordered_ already returned
  int64_t swap_ = 0;             // bytes of an element whose bytes are reversed, or 0
};

}  // namespace

std::unique_ptr<WeightFile> open_npz_weights(const std::string& path) {
  return std::make_unique<NpzReader>(path);
}

}  // namespace checkpoint
