// SPDX-License-Identifier: Apache-2.0
#include "io/h5_stored.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <vector>

#include "io/h5_handle.hpp"

namespace io {
namespace {

namespace fs = std::filesystem;
constexpr int kDeepest = 8;  // virtual datasets made of virtual datasets

struct Dataset {
  hid_t id;
  std::string name, path;
  bool count_chunks;
  int depth = 0;

  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(fmt::format("{}: dataset {}: {}", path, name, what), 0);
  }
  H5Handle creation() const {
    return H5Handle(H5Dget_create_plist(id), H5Pclose, "read the layout of " + name, path);
  }
  std::vector<hsize_t> shape() const {
    H5Handle space(H5Dget_space(id), H5Sclose, "read the shape of " + name, path);
    std::vector<hsize_t> out(size_t(std::max(H5Sget_simple_extent_ndims(space), 0)));
    check_h5(H5Sget_simple_extent_dims(space, out.data(), nullptr), "read the shape of " + name,
             path);
    return out;
  }
};

void check(const Dataset& set);

std::string folder_of(const std::string& path) {
  std::error_code problem;
  return fs::absolute(path, problem).parent_path().native();
}

// ---------------------------------------------------------------- chunks

hsize_t chunks_of(const std::vector<hsize_t>& shape, const std::vector<hsize_t>& chunk) {
  hsize_t count = 1;
  for (size_t i = 0; i < shape.size(); ++i)
    if (__builtin_mul_overflow(count, (shape[i] + chunk[i] - 1) / chunk[i], &count))
      return HSIZE_UNDEF;
  return count;
}

// Returns the first row of the first chunk that was never written.
hsize_t first_missing_row(const Dataset& set, const std::vector<hsize_t>& shape,
                          const std::vector<hsize_t>& chunk) {
  std::vector<hsize_t> at(shape.size(), 0);
  while (true) {
    unsigned mask = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    check_h5(H5Dget_chunk_info_by_coord(set.id, at.data(), &mask, &address, &size),
             "find the chunks of " + set.name, set.path);
    if (address == HADDR_UNDEF) return at[0];
    size_t axis = shape.size();
    while (axis-- > 0) {
      at[axis] += chunk[axis];
      if (at[axis] < shape[axis]) break;
      if (axis == 0) return 0;
      at[axis] = 0;
    }
  }
}

void check_chunks(const Dataset& set, const H5Handle& creation) {
  const std::vector<hsize_t> shape = set.shape();
  std::vector<hsize_t> chunk(shape.size());
  check_h5(H5Pget_chunk(creation, int(chunk.size()), chunk.data()),
           "read the chunks of " + set.name, set.path);
  H5Handle space(H5Dget_space(set.id), H5Sclose, "read the shape of " + set.name, set.path);
  hsize_t have = 0;
  check_h5(H5Dget_num_chunks(set.id, space, &have), "count the chunks of " + set.name, set.path);
  const hsize_t want = chunks_of(shape, chunk);
  if (have >= want) return;
  set.fail(fmt::format(
      "{} of its {} chunks were never written, the first at row {}, and HDF5 would give "
      "zeros or the fill value for them: write these rows, or cut the dataset before them",
      want - have, want, first_missing_row(set, shape, chunk)));
}

// ---------------------------------------------------------------- external files

// HDF5 looks for these files in the current folder, or where the variable says.
std::string external_path(const std::string& name, const std::string& path) {
  const char* prefix = std::getenv("HDF5_EXTFILE_PREFIX");
  if (!prefix || !*prefix || name.starts_with('/')) return name;
  std::string folder = prefix;
  if (constexpr std::string_view kOrigin = "${ORIGIN}"; folder.starts_with(kOrigin))
    folder.replace(0, kOrigin.size(), folder_of(path));
  return fmt::format("{}/{}", folder, name);
}

void check_external(const Dataset& set, const H5Handle& creation, hsize_t left) {
  for (int i = 0, n = H5Pget_external_count(creation); i < n && left > 0; ++i) {
    char name[4096] = "";
    off_t offset = 0;
    hsize_t size = 0;
    check_h5(H5Pget_external(creation, unsigned(i), sizeof name - 1, name, &offset, &size),
             "read the external files of " + set.name, set.path);
    const std::string file = external_path(name, set.path);
    const hsize_t piece = std::min(size, left), end = hsize_t(offset) + piece;
    std::error_code problem;
    const auto there = fs::file_size(file, problem);
    if (problem)
      set.fail(fmt::format(
          "its external file '{}' cannot be read: {}. HDF5 looks for it at '{}'; "
          "HDF5_EXTFILE_PREFIX names another folder (${{ORIGIN}} = the folder of the HDF5 file)",
          name, problem.message(), file));
    if (there < end)
      set.fail(
          fmt::format("its external file '{}' has only {} of {} bytes, and HDF5 would give zeros "
                      "for the rest: copy it again",
                      file, uint64_t(there), end));
    left -= piece;
  }
}

// ---------------------------------------------------------------- virtual datasets

// Returns the text that `get` writes to a buffer.
template <class Get>
std::string text_of(Get get, const Dataset& set) {
  const ssize_t size = get(nullptr, 0);
  if (size < 0) fail_h5("read the sources of " + set.name, set.path);
  std::string out(size_t(size) + 1, '\0');
  get(out.data(), out.size());
  out.pop_back();
  return out;
}

// Finds a source file where HDF5 does, in its order. Returns "" if there is none.
std::string find_source(const std::string& name, const std::string& path) {
  std::vector<std::string> places;
  std::string relative = name;
  if (name.starts_with('/')) {
    places.push_back(name);
    relative = fs::path(name).filename().native();
  }
  if (const char* prefixes = std::getenv("HDF5_VDS_PREFIX"))
    for (std::string_view rest = prefixes; !rest.empty();) {
      const size_t end = std::min(rest.find(':'), rest.size());
      std::string folder(rest.substr(0, end));
      if (constexpr std::string_view kOrigin = "${ORIGIN}"; folder.starts_with(kOrigin))
        folder.replace(0, kOrigin.size(), folder_of(path));
      if (!folder.empty()) places.push_back(folder + "/" + relative);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  places.push_back(folder_of(path) + "/" + relative);
  places.push_back(relative);
  std::error_code problem;
  if (const fs::path real = fs::canonical(path, problem); !problem)
    places.push_back((real.parent_path() / relative).native());
  for (const std::string& place : places)
    if (fs::is_regular_file(place, problem)) return place;
  return "";
}

class Sources {
 public:
  explicit Sources(const Dataset& set) : set_(set) {}

  // Checks that one source exists and holds its selected part. The dataset takes `points` elements
  // of the source for its own part `to`; -1: as many as the source has.
  void check_part(const std::string& file, const std::string& dataset, hid_t part, hid_t to,
                  hssize_t points) {
    const std::vector<hsize_t>& shape = shape_of(file, dataset);
    if (H5Sget_select_type(part) == H5S_SEL_ALL) {  // the file does not keep its shape
      hsize_t there = 1;
      for (hsize_t size : shape) there *= size;
      if (points >= 0 && there < hsize_t(points)) smaller(file, dataset);
      // HDF5 takes the first elements. If rows have become longer, these belong to other places.
      if (points >= 0 && there > hsize_t(points) && !has_rows_of(to, shape))
        set_.fail(fmt::format(
            "its source, dataset '{}' of '{}', has rows of another size than the virtual dataset "
            "expects, and HDF5 would mix the rows: make the source or the virtual dataset again",
            dataset, file));
      return;
    }
    const int axes = H5Sget_simple_extent_ndims(part);
    std::vector<hsize_t> first(size_t(std::max(axes, 1))), last(first.size());
    if (axes < 1 || H5Sget_select_bounds(part, first.data(), last.data()) < 0) {
      H5Eclear2(H5E_DEFAULT);  // without end: as much as the source has
      return;
    }
    bool inside = shape.size() == last.size();
    for (size_t i = 0; inside && i < shape.size(); ++i) inside = last[i] < shape[i];
    if (!inside) smaller(file, dataset);
  }

 private:
  [[noreturn]] void smaller(const std::string& file, const std::string& dataset) const {
    set_.fail(
        fmt::format("its source, dataset '{}' of '{}', is smaller than the part that the virtual "
                    "dataset takes, and HDF5 would give zeros for the rest: make the source or the "
                    "virtual dataset again",
                    dataset, file));
  }

  // True if a part of the dataset has the sizes of a source in all axes but the source's first one.
  static bool has_rows_of(hid_t to, const std::vector<hsize_t>& shape) {
    std::vector<hsize_t> first(size_t(std::max(H5Sget_simple_extent_ndims(to), 0)));
    std::vector<hsize_t> last(first.size());
    if (H5Sget_select_bounds(to, first.data(), last.data()) < 0) H5Eclear2(H5E_DEFAULT);
    if (last.size() + 1 < shape.size()) return false;
    for (size_t i = 1; i < shape.size(); ++i) {
      const size_t axis = last.size() - shape.size() + i;
      if (last[axis] - first[axis] + 1 != shape[i]) return false;
    }
    return true;
  }

  // Checks a source at its first use.
  const std::vector<hsize_t>& shape_of(const std::string& file, const std::string& dataset) {
    const auto [known, fresh] = shapes_.try_emplace({file, dataset});
    if (!fresh) return known->second;
    H5Handle own(H5Iget_file_id(set_.id), H5Fclose, "read the file of " + set_.name, set_.path);
    if (file == ".") return known->second = check_source(own, set_.path, dataset);
    const std::string found = find_source(file, set_.path);
    if (found.empty())
      set_.fail(fmt::format(
          "its rows are stored in '{}', which does not exist, and HDF5 would give zeros for them: "
          "put that file beside this one, or name its folder in HDF5_VDS_PREFIX",
          file));
    H5Handle access(H5Fget_access_plist(own), H5Pclose, "read the access to the file", set_.path);
    H5Handle other(H5Fopen(found.c_str(), H5F_ACC_RDONLY, access), H5Fclose,
                   fmt::format("open the source of {} in {}", set_.name, set_.path), found);
    return known->second = check_source(other, found, dataset);
  }

  std::vector<hsize_t> check_source(hid_t file, const std::string& path,
                                    const std::string& dataset) const {
    H5Handle source(
        H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose,
        fmt::format("open dataset {}, the source of {} in {}", dataset, set_.name, set_.path),
        path);
    const Dataset set{source, dataset, path, set_.count_chunks, set_.depth + 1};
    check(set);
    return set.shape();
  }

  const Dataset& set_;
  std::map<std::pair<std::string, std::string>, std::vector<hsize_t>> shapes_;
};

// The elements of a dataset that no part covers yet. Parts may overlap, so adding up their sizes
// would not give the number.
class Missing {
 public:
  explicit Missing(const Dataset& set)
      : set_(set),
        left_(H5Dget_space(set.id), H5Sclose, "read the shape of " + set.name, set.path) {
    const std::vector<hsize_t> shape = set.shape(), first(shape.size(), 0);
    if (!shape.empty())  // only hyperslabs can be combined
      check_h5(
          H5Sselect_hyperslab(left_, H5S_SELECT_SET, first.data(), nullptr, shape.data(), nullptr),
          "select all of " + set.name, set.path);
  }
  hsize_t count() const { return hsize_t(std::max<hssize_t>(H5Sget_select_npoints(left_), 0)); }
  void remove(hid_t part) {
    if (H5Sget_select_type(part) == H5S_SEL_ALL)
      check_h5(H5Sselect_none(left_), "clear the parts of " + set_.name, set_.path);
    if (H5Sget_select_type(part) != H5S_SEL_HYPERSLABS || count() == 0) return;
    check_h5(H5Smodify_select(left_, H5S_SELECT_NOTB, part), "join the parts of " + set_.name,
             set_.path);
  }

 private:
  const Dataset& set_;
  H5Handle left_;
};

void check_virtual(const Dataset& set, const H5Handle& creation, hsize_t elements) {
  if (set.depth >= kDeepest)
    set.fail(
        "its virtual datasets are nested too deep or in a circle; copy the rows into one dataset");
  size_t count = 0;
  check_h5(H5Pget_virtual_count(creation, &count), "count the sources of " + set.name, set.path);
  Sources sources(set);
  Missing missing(set);
  bool endless = false;  // a part grows with its source
  for (size_t i = 0; i < count; ++i) {
    const std::string file = text_of(
        [&](char* to, size_t n) { return H5Pget_virtual_filename(creation, i, to, n); }, set);
    const std::string dataset = text_of(
        [&](char* to, size_t n) { return H5Pget_virtual_dsetname(creation, i, to, n); }, set);
    H5Handle to(H5Pget_virtual_vspace(creation, i), H5Sclose, "read the parts of " + set.name,
                set.path);
    H5Handle from(H5Pget_virtual_srcspace(creation, i), H5Sclose, "read the parts of " + set.name,
                  set.path);
    const hssize_t points = H5Sget_select_npoints(to);
    endless |= points < 0;
    if (points > 0 && !endless) missing.remove(to);
    // "part-%b.h5" stands for as many files as exist. The rows end with the last one, with no gap.
    if (file.find('%') == file.npos && dataset.find('%') == dataset.npos)
      sources.check_part(file, dataset, from, to, points);
  }
  if (!endless && missing.count() > 0)
    set.fail(fmt::format("{} of its {} elements have no source, and HDF5 would give zeros for them",
                         missing.count(), elements));
}

void check(const Dataset& set) {
  check_filters(set.id, set.name, set.path);
  H5Handle space(H5Dget_space(set.id), H5Sclose, "read the shape of " + set.name, set.path);
  const hssize_t elements = H5Sget_simple_extent_npoints(space);
  if (elements == 0) return;
  const H5Handle creation = set.creation();
  switch (H5Pget_layout(creation)) {
    case H5D_VIRTUAL:
      return check_virtual(set, creation, hsize_t(elements));
    case H5D_CHUNKED:
      if (set.count_chunks) check_chunks(set, creation);
      return;
    case H5D_CONTIGUOUS: {
      if (H5Pget_external_count(creation) > 0) {
        H5Handle type(H5Dget_type(set.id), H5Tclose, "read the type of " + set.name, set.path);
        return check_external(set, creation, hsize_t(elements) * H5Tget_size(type));
      }
      H5D_space_status_t status = H5D_SPACE_STATUS_ALLOCATED;
      check_h5(H5Dget_space_status(set.id, &status), "look for the data of " + set.name, set.path);
      if (status == H5D_SPACE_STATUS_NOT_ALLOCATED)
        set.fail("it was never written, and HDF5 would give zeros");
      return;
    }
    default:
      return;
  }
}

}  // namespace

bool is_elsewhere(hid_t dataset) {
  H5Handle creation(H5Dget_create_plist(dataset), H5Pclose, "read the layout", "dataset");
  return H5Pget_layout(creation) == H5D_VIRTUAL || H5Pget_external_count(creation) > 0;
}

void check_filters(hid_t dataset, const std::string& name, const std::string& path) {
  const Dataset set{dataset, name, path, false};
  const H5Handle creation = set.creation();
  for (int i = 0, n = H5Pget_nfilters(creation); i < n; ++i) {
    unsigned flags = 0, able = 0;
    size_t values = 0;
    char called[64] = "";
    const H5Z_filter_t filter = H5Pget_filter2(creation, unsigned(i), &flags, &values, nullptr,
                                               sizeof called - 1, called, nullptr);
    if (filter < 0) fail_h5("read the filters of " + name, path);
    if (H5Zfilter_avail(filter) > 0 && H5Zget_filter_info(filter, &able) >= 0 &&
        (able & H5Z_FILTER_CONFIG_DECODE_ENABLED))
      continue;
    H5Eclear2(H5E_DEFAULT);
    // h5repack does not help: it leaves such a dataset unchanged and reports success.
    set.fail(fmt::format(
        "it is compressed with {} (filter {}), which this HDF5 library cannot read: write it again "
        "with gzip, in h5py: new.create_dataset(\"x\", data=old[\"x\"][()], "
        "dtype=old[\"x\"].dtype, compression=\"gzip\"); or name the folder of the filter's plugin "
        "in HDF5_PLUGIN_PATH",
        *called ? called : "an unnamed method", filter));
  }
}

void check_stored(hid_t dataset, const std::string& name, const std::string& path,
                  bool count_chunks) {
  check({dataset, name, path, count_chunks});
}

}  // namespace io
