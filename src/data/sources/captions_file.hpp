// SPDX-License-Identifier: Apache-2.0
// The captions of images, from tables (TSV, CSV, JSONL) or COCO's captions JSON. They are stored
// compactly: one block of text, and positions in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/sources/caption_table.hpp"

namespace data {

bool is_coco(const std::string& path);  // .json, in letters of any case

class CaptionsFile {
 public:
  // The ending decides the format: .tsv, .csv and .jsonl are tables (caption_table.hpp); .json has
  // COCO's "images" (id, file_name) and "annotations" (image_id, caption). Files are read one after
  // the other. Images are numbered by first appearance; the captions of an image keep their order.
  // Throws Error(Exit::data) with file and line or number for malformed content, and for names that
  // are absolute or lead out of their folder.
  explicit CaptionsFile(const std::vector<std::string>& paths, const TableColumns& columns = {});

  int64_t images() const { return int64_t(names_.size()); }  // images with a caption
  int64_t captions() const { return int64_t(captions_.size()); }
  int64_t without_caption() const { return without_; }  // images of a JSON file that are left out
  int64_t unquoted_cells() const { return unquoted_; }  // of TSV files (TableForm)
  // The first image of a table without a header; it may be a header with unusual names. "" if all
  // tables have headers.
  const std::string& headless() const { return headless_; }
  std::string_view name(int64_t image) const { return view(names_[size_t(image)]); }
  // The captions of an image have the numbers [first, last).
  std::pair<int64_t, int64_t> of_image(int64_t image) const {
    return {first_[size_t(image)], first_[size_t(image) + 1]};
  }
  std::string_view caption(int64_t number) const { return view(captions_[size_t(number)]); }
  int64_t image_of(int64_t number) const;  // the image that the caption belongs to

 private:
  struct Piece {
    uint64_t at;
    uint32_t size;
  };
  struct Collector;
  void read_table(const std::string& path, const TableColumns& columns, Collector& collector);
  void read_coco(const std::string& path, Collector& collector);
  std::string_view view(const Piece& p) const {
    return std::string_view(text_).substr(p.at, p.size);
  }

  std::string text_;
  std::vector<Piece> names_, captions_;  // captions sorted by image
  std::vector<int64_t> first_;           // [images + 1]
  int64_t without_ = 0, unquoted_ = 0;
  std::string headless_;
};

}  // namespace data
