// SPDX-License-Identifier: Apache-2.0
// Reads image files in sub-folders, one sub-folder for each class.
#pragma once

#include <memory>
#include <string>

#include "data/sources/class_names.hpp"
#include "data/sources/source.hpp"

namespace data {

struct ClassFolderOptions : SourceOptions {
  std::string path;     // folder of the classes' folders
  std::string classes;  // file or folder with the names of the classes; "" = path
  void bind(config::Table& t) override;
  const std::string& names_from() const { return classes.empty() ? path : classes; }
  Spec spec() const override;
  std::vector<std::string> files() const override;
  std::unique_ptr<Source> open(const OpenContext& context) const override;
};

}  // namespace data
