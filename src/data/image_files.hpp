// SPDX-License-Identifier: Apache-2.0
// Image files that belong to no data set: a user names files and folders, and a data set of the
// deck gives the ops.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.hpp"

namespace data {

// Returns the files that the paths name. A folder stands for the image files in it and in its
// sub-folders, sorted by name (is_image_file). Hidden files and folders are left out. Links to a
// folder above them are left out with a warning. Any other path is returned as it is. Throws
// Error(Exit::data) for a folder that cannot be listed or holds no image.
std::vector<std::string> find_images(const std::vector<std::string>& paths);

// Makes a data set of image files: sample i has the one field `field`, which the ops of [data.NAME]
// make from file i. Ops that the field does not depend on are left out. Random ops draw by the
// number of the file. Opens no image. Throws Error(Exit::config) if the ops need more than the file
// of an image.
std::unique_ptr<Dataset> open_images(const Sections& sections, const Tokenizers& tokenizers,
                                     const std::string& name, const std::string& field,
                                     std::vector<std::string> files, const OpenContext& context);

}  // namespace data
