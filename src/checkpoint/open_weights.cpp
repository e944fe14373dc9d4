// SPDX-License-Identifier: Apache-2.0
// Chooses the reader for a file of initial weights.
#include <algorithm>

#include "base/pointer_file.hpp"
#include "checkpoint/catalogue.hpp"
#include "checkpoint/foreign_file.hpp"
#include "checkpoint/weight_file.hpp"
#include "data/sources/file.hpp"
#include "io/files.hpp"

namespace checkpoint {
namespace {

using Open = std::unique_ptr<WeightFile> (*)(const std::string& path);
struct Ending {
  const char* text;
  Open open;
};
constexpr Ending kEndings[] = {
    {".npz", open_npz_weights},    {".safetensors", open_safetensors_weights},
    {".index.json", open_shards},  {".pth", open_pth_weights},
    {".pt", open_pth_weights},     {".bin", open_pth_weights},
    {".ckpt", open_pth_weights},   {".torch", open_pth_weights},
    {".pth.tar", open_pth_weights}};

// By transformers and timm, by open_clip, and by tools/export for big_vision.
constexpr const char* kNamesInFolders[] = {
    "model.safetensors", "model.safetensors.index.json", "open_clip_model.safetensors",
    "pytorch_model.bin", "pytorch_model.bin.index.json", "open_clip_pytorch_model.bin",
    "weights.npz"};

std::unique_ptr<WeightFile> open_newest(const std::vector<Candidate>& files) {
  std::string reasons;
  for (const Candidate& c : files) {
    try {
      return open_checkpoint_weights(c.path);
    } catch (const base::Error& e) {
      reasons += fmt::format("{}{}", reasons.empty() ? "" : "\n  ", e.what());
    }
  }
  base::fail(base::Exit::checkpoint, "{}", reasons);
}

bool holds_checkpoints(const std::string& folder) {
  try {
    return !zarr_folder(folder).empty() || !files_at(folder).empty();
  } catch (const base::Error&) {
    return false;
  }
}

// Returns base::pointer_problem of a file.
std::string pointer_in(const std::string& path) {
  if (io::is_directory(path)) return "";
  const io::File file(path, io::File::Mode::read);
  std::string head(size_t(std::min<int64_t>(file.size(), 64)), '\0');
  file.read_at(head.data(), int64_t(head.size()), 0);
  return base::pointer_problem(head);
}

}  // namespace

std::string weights_in(const std::string& path) {
  // An export may lie in a run directory.
  if (!io::is_directory(path) || holds_checkpoints(path)) return path;
  for (const char* name : kNamesInFolders)
    if (const std::string file = path + (path.ends_with('/') ? "" : "/") + name; io::exists(file))
      return file;
  return path;
}

bool has_weights_alone(const std::string& path) {
  const std::string file = weights_in(path);
  return std::ranges::any_of(kEndings,
                             [&](const Ending& e) { return data::has_ending(file, e.text); });
}

std::unique_ptr<WeightFile> open_weights(const std::string& given) {
  using base::Exit;
  const std::string path = weights_in(given);
  try {
    if (std::string folder = zarr_folder(path); !folder.empty()) return open_zarr_weights(folder);
    if (!io::exists(path)) base::fail(Exit::checkpoint, "{}: there is no such file", path);
    if (const std::string pointer = pointer_in(path); !pointer.empty())
      base::fail(Exit::checkpoint, "{}: {}", path, pointer);
    if (io::is_directory(path) || data::has_ending(path, ".h5")) return open_newest(files_at(path));
    for (const auto& [end, open] : kEndings)
      if (data::has_ending(path, end)) return open(path);
  } catch (const io::Failure& e) {
    base::fail(Exit::checkpoint, "{}", e.what());
  }
  base::fail(Exit::checkpoint,
             "{}: the name has an unknown ending; known endings are .h5 (a checkpoint of this "
             "program), .npz, .safetensors, .pth, .pt, .bin, .ckpt and .torch (torch.save), "
             ".index.json (several such files); a run directory works too{}",
             path, foreign_hint(path));
}

}  // namespace checkpoint
