// A folder of image files and one file of captions: TSV or COCO captions JSON.
#pragma once

#include <memory>
#include <string>

#include "data/source.hpp"

namespace data {

struct FolderOptions : SourceOptions {
  std::string path;              // of the images
  std::string captions;          // .tsv or .json
  std::string sample = "image";  // or "caption"
  void bind(config::Table& t) override;
  Spec spec() const override;
  std::vector<std::string> files() const override;  // the images; Error(Exit::data) for a captions file that is no good
  std::unique_ptr<Source> open(const OpenContext& context) const override;
};

}  // namespace data
