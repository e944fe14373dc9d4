// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/catalogue.hpp"

#include <algorithm>
#include <charconv>

#include "base/text.hpp"
#include "checkpoint/header.hpp"

namespace checkpoint {

std::string file_name(int64_t step) { return fmt::format("{:010}.h5", step); }

std::vector<Candidate> candidates(const std::string& directory) {
  std::vector<Candidate> found;
  for (const std::string& name : io::list_directory(directory)) {
    int64_t step = -1;
    auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
    if (error == std::errc() && step >= 0 && name == file_name(step))
      found.push_back({step, directory + "/" + name});
  }
  std::sort(found.begin(), found.end(),
            [](const Candidate& a, const Candidate& b) { return a.step > b.step; });
  return found;
}

std::vector<Candidate> files_at(const std::string& path) {
  try {
    if (!io::exists(path))
      base::fail(base::Exit::checkpoint, "{}: there is no such file or directory", path);
    if (!io::is_directory(path)) return {{check_header(path).step, path}};
    std::vector<Candidate> found = candidates(path + "/checkpoints");
    if (found.empty()) found = candidates(path);
    if (found.empty())
      base::fail(base::Exit::checkpoint,
                 "{}: this folder holds no checkpoint, nor does its folder checkpoints/", path);
    return found;
  } catch (const io::Failure& e) {
    base::fail(base::Exit::checkpoint, "{}", e.what());
  } catch (const base::Error& e) {
    if (std::string_view(e.what()).starts_with(path)) throw;
    base::fail(base::Exit::checkpoint, "{}: {}", path, e.what());
  }
}

int64_t best_held(const std::string& directory) {
  std::string path = directory + "/" + kBest;
  try {
    return io::exists(path) ? check_header(path).step : -1;
  } catch (const base::Error&) {
    return -1;
  }
}

std::vector<std::string> remove_leftovers(const std::string& directory) {
  std::vector<std::string> removed;
  for (const std::string& name : io::list_directory(directory))
    if (name.ends_with(".h5.tmp") && io::remove_file(directory + "/" + name))
      removed.push_back(name);
  return removed;
}

std::vector<std::string> abandon_after(const std::string& directory, int64_t step,
                                       const std::set<int64_t>& own) {
  std::vector<std::string> moved;
  std::string to = directory + "/abandoned";
  for (const Candidate& c : candidates(directory)) {
    if (c.step <= step || own.contains(c.step)) continue;
    if (moved.empty()) io::make_directories(to);
    std::string name = file_name(c.step);
    // An earlier restart may have taken the name.
    for (int past = 2; io::exists(to + "/" + name); ++past)
      name = fmt::format("{}.past{}.h5", name.substr(0, file_name(c.step).size() - 3), past);
    io::rename_file(c.path, to + "/" + name);
    moved.push_back(name);
  }
  if (!moved.empty()) {
    io::sync_directory(to);
    io::sync_directory(directory);
  }
  return moved;
}

std::vector<std::string> retain(const std::string& directory, int64_t written,
                                const CheckpointOptions& options) {
  std::vector<std::string> removed;
  int64_t kept = 0;
  for (const Candidate& c : candidates(directory)) {
    if (c.step != written) {
      try {
        check_header(c.path);
      } catch (const base::Error&) {
        continue;
      }
      bool stays = options.keep_every_steps > 0 && c.step % options.keep_every_steps == 0;
      if (kept >= options.keep_last && c.step < written && !stays) {
        io::remove_file(c.path);
        removed.push_back(file_name(c.step));
        continue;
      }
    }
    ++kept;
  }
  return removed;
}

std::vector<std::string> differences(const FileLayout& file, const FileLayout& wanted,
                                     size_t most) {
  auto describe = [](const Entry& e) {
    return fmt::format("{}[{}]", name_of(e.type), fmt::join(e.shape, ", "));
  };
  std::vector<std::string> all;
  for (const Entry& e : wanted.entries) {
    if (e.name == kDeck) continue;
    const Entry* found = file.find(e.name);
    if (!found)
      all.push_back(fmt::format("missing in the file: {} {}", e.name, describe(e)));
    else if (found->type != e.type || found->shape != e.shape)
      all.push_back(
          fmt::format("{}: the file has {}, this run {}", e.name, describe(*found), describe(e)));
  }
  for (const Entry& e : file.entries)
    if (e.name != kDeck && !wanted.find(e.name))
      all.push_back(fmt::format("only in the file: {} {}", e.name, describe(e)));
  if (all.size() > most) {
    size_t more = all.size() - most;
    all.resize(most);
    all.push_back(fmt::format("and {} more", more));
  }
  return all;
}

}  // namespace checkpoint
