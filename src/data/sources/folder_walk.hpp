// SPDX-License-Identifier: Apache-2.0
// Finds the image files in folders and their sub-folders. Links count as what they lead to. Files
// and folders whose name begins with a dot are left out: programs keep copies and notes in them. So
// are folders that systems make, such as __MACOSX and @eaDir.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace data {

// True if there is no such file or folder: no entry, or a link that leads nowhere or to itself.
bool leads_nowhere(const std::filesystem::path& path);
// leads_nowhere for an entry that exists. Only links need a system call.
bool is_dangling(const std::filesystem::directory_entry& entry);

// True for a pipe, a socket or a device, or a link to one.
bool is_special(const std::filesystem::directory_entry& entry);

// Returns the names of the sub-folders, without hidden ones, in no order. Throws Error(Exit::data)
// if the folder cannot be listed, or holds a link that leads nowhere and may have led to a
// sub-folder.
std::vector<std::string> sub_folders(const std::string& folder);

struct FoundImages {
  std::vector<std::string> images;  // paths, in no order; links that lead nowhere are among them
  std::vector<std::string> lost;    // links that lead nowhere, images or not
  int64_t others = 0;               // files that are not images
  int64_t hidden = 0;               // images and folders left out by their names
};

// What a walk is for.
enum class WalkFor {
  samples,  // each image counts once: Error(Exit::data) for a link to a folder that is listed
            // elsewhere, and for a pipe, socket or device with an image's name
  names,    // an image may be listed under several names. A link to a folder above it gives a
            // warning and is not followed. Pipes are among the images.
};

// Several walks of one object list no folder twice, unless a link leads there and the walk is for
// names.
class FolderWalk {
 public:
  // Links to `root` and the folders above it count as links to a folder above them.
  explicit FolderWalk(const std::string& root, std::stop_token token = {},
                      WalkFor purpose = WalkFor::samples);
  // Adds the files below `folder`, which may be the root or may not exist. Throws Error(Exit::data)
  // as WalkFor says, and Unreadable if a folder cannot be listed.
  void add(const std::string& folder, FoundImages& found);

 private:
  struct Listed {
    std::string path;
    bool link = false;   // a link, or below one
    bool above = false;  // the walk is in it, or it is the root or above
  };
  // Returns the folder's entry; null if it is not listed. Throws if it is known under another path,
  // by a link, and the walk is for samples.
  Listed* remember(const std::filesystem::path& folder, bool link);
  void add_below(const std::filesystem::path& folder, bool link, FoundImages& found);
  void add_file(const std::filesystem::directory_entry& entry, FoundImages& found) const;

  std::string root_;
  std::stop_token token_;
  WalkFor purpose_;
  std::map<std::pair<uint64_t, uint64_t>, Listed> listed_;  // by device and number of the folder
};

}  // namespace data
