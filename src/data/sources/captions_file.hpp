// SPDX-License-Identifier: Apache-2.0
// The captions of images, from tables (TSV, CSV) or COCO's captions JSON. Kept compactly: one block
// of text and places in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/sources/caption_table.hpp"

namespace data {

class CaptionsFile {
 public:
  // Format by the ending: .tsv, .csv, .jsonl (caption_table.hpp); .json, COCO's "images" (id,
  // file_name) and "annotations" (image_id, caption). Files are read one after the other. Images
  // are numbered as they first appear, captions of an image as they appear. Error(Exit::data) with
  // file and line or number for anything that is not so, and for names that are absolute or lead
  // out of their folder.
  explicit CaptionsFile(const std::vector<std::string>& paths, const TableColumns& columns = {});

  int64_t images() const { return int64_t(names_.size()); }  // those with at least one caption
  int64_t captions() const { return int64_t(captions_.size()); }
  int64_t without_caption() const { return without_; }  // images of a JSON file, left out
  // The first image of a table without a header: perhaps a header with unusual names. "": all
  // tables have headers.
  const std::string& headless() const { return headless_; }
  std::string_view name(int64_t image) const { return view(names_[size_t(image)]); }
  // Captions [first, last) are those of the image.
  std::pair<int64_t, int64_t> of_image(int64_t image) const {
    return {first_[size_t(image)], first_[size_t(image) + 1]};
  }
  std::string_view caption(int64_t number) const { return view(captions_[size_t(number)]); }
  int64_t image_of(int64_t number) const;  // whose caption this is

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
  int64_t without_ = 0;
  std::string headless_;
};

}  // namespace data
