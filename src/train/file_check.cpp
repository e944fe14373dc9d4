// SPDX-License-Identifier: Apache-2.0
#include "train/file_check.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>

#include "base/text.hpp"
#include "checkpoint/catalogue.hpp"
#include "checkpoint/weight_file.hpp"
#include "data/sources/file.hpp"
#include "data/sources/hdf5.hpp"
#include "data/tokenizers/tokenizer.hpp"

namespace train {
namespace {

constexpr size_t kMaxNamed = 3;  // bad files named per data set; the others are counted

// Returns what is wrong with the first bytes of a shard; "" if nothing is, or if the file name
// implies no format.
std::string header_problem(const data::File& file) {
  std::array<char, 512> head{};
  const size_t count = size_t(std::min<int64_t>(file.size(), int64_t(head.size())));
  file.read(0, head.data(), count);
  if (count == 0) return "is empty";
  const std::string& path = file.path();
  const bool magic = std::memcmp(head.data() + 257, "ustar", 5) == 0;
  // Tars from before 1988 have no magic, but a checksum of octal digits.
  const bool old = head[148] == ' ' || (head[148] >= '0' && head[148] <= '7');
  if (data::has_ending(path, ".tar") && (count < head.size() || !(magic || old)))
    return "does not begin like a tar";
  if ((data::has_ending(path, ".h5") || data::has_ending(path, ".hdf5")) &&
      std::memcmp(head.data(), "\x89HDF\r\n\x1a\n", 8) != 0)
    return "does not begin like an HDF5 file";
  return "";
}

std::string file_problem(const std::string& path) {
  try {
    const data::File file(path);
    const std::string problem = header_problem(file);
    return problem.empty() ? "" : fmt::format("'{}' {}", path, problem);
  } catch (const base::Error& e) {
    return e.what();
  }
}

// Returns the problems of a data set's files as one text; "" if there are none.
std::string dataset_problem(const data::SourceOptions& options) {
  std::vector<std::string> problems;
  size_t bad = 0;
  const std::vector<std::string> files = options.files();
  const auto* hdf5 = dynamic_cast<const data::Hdf5Options*>(&options);
  for (const std::string& path : files) {
    std::string problem = file_problem(path);
    if (problem.empty() && hdf5) problem = hdf5->rows_problem(path);
    if (!problem.empty() && ++bad <= kMaxNamed) problems.push_back(problem);
  }
  if (bad == 0) return "";
  std::string text = base::join(problems, "; ");
  return bad > problems.size() ? fmt::format("{}; in all {} of {} files", text, bad, files.size())
                               : text;
}

// A key that names files, with the check of its files.
struct Place {
  std::string key;  // key of the deck
  std::string text;
  base::Exit code;
  std::function<std::string()> problem;  // may throw base::Error instead
};

struct Found {
  std::string text;  // "" if there is no problem
  base::Exit code;
};

Found problem_of(const Place& place) {
  try {
    return {place.problem(), place.code};
  } catch (const base::Error& e) {
    return {e.what(), e.code()};
  }
}

std::vector<Place> places_of(const Recipe& recipe, const config::Deck& deck) {
  std::vector<Place> out;
  const std::map<std::string, std::string> values = deck.flat();
  auto add = [&](const std::string& key, base::Exit code, std::function<std::string()> problem) {
    out.push_back({key, values.at(key), code, std::move(problem)});
  };
  for (const auto& [name, options] : recipe.data.tokenizer)
    if (const std::string key = fmt::format("tokenizer.{}.path", name); deck.has(key))
      add(key, base::Exit::data, [&model = options.model] {
        return std::dynamic_pointer_cast<const data::TokenizerKindOptions>(model)->open(),
               std::string();
      });
  for (const auto& [name, options] : recipe.data.data) {
    if (!options.source_options()) continue;
    if (const std::string key =
            fmt::format("data.{}.{}", name, options.source_options()->files_key());
        deck.has(key))
      add(key, base::Exit::data,
          [&set = options] { return dataset_problem(*set.source_options()); });
  }
  if (const std::string& path = recipe.init.from; !path.empty())
    add("init.from", base::Exit::checkpoint, [&path] {
      checkpoint::open_weights(path);
      return std::string();
    });
  // A branch continues a full state, so another program's file of weights will not do.
  if (const std::string& path = recipe.checkpoint.branch_from; !path.empty())
    add("checkpoint.branch_from", base::Exit::checkpoint, [&path] {
      std::string problem;
      for (const checkpoint::Candidate& file : checkpoint::files_at(path)) try {
          checkpoint::inspect(file.path, file.step);
          return std::string();
        } catch (const base::Error& e) {
          problem = e.what();
        }
      return problem;
    });
  return out;
}

}  // namespace

void check_files(const Recipe& recipe, config::Deck& deck) {
  std::optional<base::Exit> first;
  for (const Place& place : places_of(recipe, deck)) {
    const Found found = problem_of(place);
    if (found.text.empty()) continue;
    deck.error(place.key, found.text);
    if (!first) first = found.code;
  }
  if (first) throw base::Error(*first, base::join(deck.problems().lines, "\n"));
}

void print_unchecked_files(const Recipe& recipe, const config::Deck& deck) {
  bool any = false;
  for (const Place& place : places_of(recipe, deck)) {
    // Validation has already opened this tokenizer.
    if (place.key.starts_with("tokenizer.") && problem_of(place).text.empty()) continue;
    std::printf("not checked: %s = %s\n", place.key.c_str(), place.text.c_str());
    any = true;
  }
  if (any) std::printf("--validate --files checks these files\n");
}

}  // namespace train
