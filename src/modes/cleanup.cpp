// SPDX-License-Identifier: Apache-2.0
#include "modes/cleanup.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "base/pattern.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"
#include "io/files.hpp"

namespace modes {
namespace log = base::log;

namespace {

constexpr const char* kLock = "lock";

// The files that training writes, by their paths in the run directory. Results of other commands
// are not listed: of the modes extract, predict, show and index, and of tools that draw.
const base::Pattern& written_files() {
  static const base::Pattern names(
      R"((deck\.resolved\.toml|report\.txt|gemm_search\.txt)"
      R"(|metrics\.(h5|jsonl)|metrics\.abandoned(\.\d+)?\.(h5|jsonl))"
      R"(|checkpoints/(\d{10}|latest|best)\.h5|checkpoints/abandoned/\d{10}(\.past\d+)?\.h5)"
      R"(|logs/(rank\d{5}\.log|report\.spare|hooks\.log)|attempts\.jsonl)"
      R"(|logs/(warnings|parameters|parameters_init|init|bad_samples|state|memory)\.txt)"
      R"(|selftest-[^/]+/rank\d{5}(\.lock)?)"
      R"(|logs/flight/\d{5}|logs/stacks/\d+-(hang|quit|crash)\d*(-rank\d{5})?\.txt(\.silent)?)"
      R"(|logs/stacks/request|logs/trace/step\d{10}(\.rank\d{5})?\.json)"
      R"(|tensorboard/events\.out\.tfevents\.\d{10})"
      R"(|logs/samples/from\d{10}\.rank\d{5}\.tsv)"
      R"(|eval/[^/]+/\d{10}/(partial/)?[^/]+|index/[^/]+\.(index|list|part))(\.tmp)?)");
  return names;
}

// The folders that training makes. Others are not entered.
const base::Pattern& made_folders() {
  static const base::Pattern names(
      R"(checkpoints(/abandoned)?|tensorboard|logs(/(samples|flight|stacks|trace))?|index)"
      R"(|selftest-[^/]+)"
      R"(|eval(/[^/]+(/\d{10}(/partial)?)?)?)");
  return names;
}

// Returns true if the folder was removed, because nothing is left in it.
bool remove_if_empty(const std::string& folder) {
  try {
    return io::remove_directory(folder);
  } catch (const io::Failure&) {  // a link, or a folder of another user
    return false;
  }
}

void sweep(const std::string& directory, const std::string& below, Swept& out) {
  for (const std::string& name :
       io::list_directory(below.empty() ? directory : directory + "/" + below)) {
    const std::string relative = below.empty() ? name : below + "/" + name;
    const std::string path = directory + "/" + relative;
    if (io::is_directory(path) && made_folders().matches(relative)) {
      const size_t kept = out.kept.size();
      sweep(directory, relative, out);
      if (!remove_if_empty(path) && out.kept.size() == kept) out.kept.push_back(relative);
    } else if (written_files().matches(relative) && !io::is_directory(path)) {
      out.removed += io::remove_file(path);
    } else if (relative != kLock) {
      out.kept.push_back(relative);
    }
  }
}

bool is_run(const std::string& directory) {
  return io::exists(directory + "/" + kLock) && io::is_directory(directory + "/checkpoints") &&
         io::is_directory(directory + "/logs");
}

// Returns the line about what was done. Rank 0.
std::string clean_up_here(const std::string& directory) {
  const std::string path = directory + "/" + kLock;
  io::File lock(path, io::File::Mode::update);
  if (!lock.try_lock())
    return fmt::format("{} is in use by another job already: nothing was removed", directory);
  const Swept swept = sweep_run_directory(directory);
  lock.close();
  if (swept.kept.empty()) {
    io::remove_file(path);
    if (remove_if_empty(directory)) return fmt::format("{} was removed", directory);
  }
  constexpr size_t kMostListed = 5;
  std::vector<std::string> listed = swept.kept;
  if (listed.size() > kMostListed) listed.resize(kMostListed);
  return fmt::format(
             "{} files of the run were removed from {}; files that the run did not write stay{}{}",
             swept.removed, directory, listed.empty() ? "" : ": ", base::join(listed, ", ")) +
         (swept.kept.size() > kMostListed
              ? fmt::format(" and {} more", swept.kept.size() - kMostListed)
              : "");
}

}  // namespace

Swept sweep_run_directory(const std::string& directory) {
  Swept out;
  sweep(directory, "", out);
  return out;
}

void check_cleanup(comm::Comm& world, const std::string& directory) {
  comm::on_first(world, [&] {
    if (io::exists(directory) && !io::list_directory(directory).empty() && !is_run(directory))
      base::fail(base::Exit::config,
                 "--cleanup: {} holds files, but no run, so it would not be removed: choose "
                 "another --dir, or leave out --cleanup",
                 directory);
    return std::string();
  });
}

void clean_up(comm::Comm& world, const std::string& directory) {
  log::close_files();  // every rank has some
  world.barrier();
  const std::string text = comm::on_first(world, [&] {
    try {
      return clean_up_here(directory);
    } catch (const base::Error& e) {
      log::warning("--cleanup: {}; the run itself has finished", e.what());
      return std::string();
    }
  });
  if (!text.empty()) log::line("cleanup  {}", text);
}

}  // namespace modes
