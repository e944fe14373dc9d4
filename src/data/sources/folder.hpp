// SPDX-License-Identifier: Apache-2.0
// Reads image files in a folder, and files of captions: tables (TSV, CSV, JSONL) or COCO captions
// JSON.
#pragma once

#include <memory>
#include <string>

#include "data/sources/caption_table.hpp"
#include "data/sources/source.hpp"

namespace data {

struct FolderOptions : SourceOptions {
  std::string path;      // folder of the images; "": the folder of the captions
  std::string captions;  // .tsv, .csv, .jsonl or .json, with braces and *, ?, [...]
  TableColumns columns;  // names of a table's columns
  bool by_image = true;  // one sample per image, or one per caption
  void bind(config::Table& t) override;
  std::vector<std::string> caption_files() const;
  // Returns the folder of the images. Throws Error(Exit::data) if `path` is "" and the caption
  // files are in several folders.
  std::string folder(const std::vector<std::string>& caption_files) const;
  Spec spec() const override;
  // Returns the images. Throws Error(Exit::data) for a bad captions file.
  std::vector<std::string> files() const override;
  std::string files_key() const override { return path.empty() ? "captions" : "path"; }
  std::unique_ptr<Source> open(const OpenContext& context) const override;

 private:
  // Return the problem of the key `captions` or of a column's key, or "".
  std::string captions_problem() const;
  std::string column_problem(const std::string& column) const;
};

}  // namespace data
