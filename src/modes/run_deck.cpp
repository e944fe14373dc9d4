// SPDX-License-Identifier: Apache-2.0
#include "modes/run_deck.hpp"

#include "checkpoint/catalogue.hpp"
#include "checkpoint/header.hpp"
#include "data/sources/file.hpp"
#include "io/files.hpp"

namespace modes {

bool holds_deck(const std::string& path) {
  return data::has_ending(path, ".h5") || io::is_directory(path);
}

config::DeckSource read_run_deck(const std::string& path, const std::string& from_key,
                                 std::vector<std::string> overrides,
                                 std::vector<std::string> removals) {
  overrides.insert(overrides.begin(), config::text_override(from_key, path));
  std::string refused;
  for (const checkpoint::Candidate& one : checkpoint::files_at(path)) {
    try {
      const checkpoint::Manifest manifest =
          checkpoint::inspect(one.path, checkpoint::check_header(one.path).step);
      const auto deck = manifest.state.texts.find("deck");
      if (deck == manifest.state.texts.end())
        base::fail(base::Exit::checkpoint, "{} holds no deck", one.path);
      return {one.path, deck->second, std::move(overrides), std::move(removals)};
    } catch (const base::Error& e) {
      refused += fmt::format("\n  {}: {}", one.path, e.what());
    }
  }
  base::fail(base::Exit::checkpoint, "{} holds no valid checkpoint to read the deck from:{}", path,
             refused);
}

}  // namespace modes
