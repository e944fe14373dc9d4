// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/name_map.hpp"

#include <algorithm>
#include <map>
#include <regex>

#include "base/text.hpp"
#include "checkpoint/resample.hpp"
#include "checkpoint/state.hpp"

namespace checkpoint {
namespace {

constexpr size_t kMaxLines = 50;
constexpr int64_t kMaxGridRows = 1 << 16;  // 256 x 256 patches

// Returns the rest of `name` behind a prefix that ends at a slash. The prefix "" leaves all of
// `name`.
std::optional<std::string> behind(const std::string& name, const std::string& prefix) {
  if (prefix.empty() || name == prefix) return prefix.empty() ? name : "";
  if (name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] == '/')
    return name.substr(prefix.size() + 1);
  return {};
}
std::string joined(const std::string& prefix, const std::string& rest) {
  return prefix.empty() || rest.empty() ? prefix + rest : prefix + "/" + rest;
}

// Returns the group that holds the parameters in the file: params, opt/target (an older layout), or
// "".
std::string root_of(const std::vector<FileTensor>& tensors) {
  for (const char* root : {"params", "opt/target"})
    for (const FileTensor& t : tensors)
      if (behind(t.name, root)) return root;
  return "";
}

class Names {
 public:
  Names(const InitOptions& options, const std::vector<FileTensor>& tensors) {
    for (const auto& [ours, theirs] : options.map) pairs_.emplace_back(ours, theirs);
    if (pairs_.empty()) pairs_.emplace_back("", root_of(tensors));
    for (const std::string& pattern : options.dont_load) dont_load_.emplace_back(pattern);
    hits_.resize(dont_load_.size());
  }
  // Returns the file's name for a parameter path; none if the map leaves the path out.
  std::optional<std::string> theirs(const std::string& path) const {
    return translate(path, false);
  }
  // Returns the parameter path for a name of the file; none if the map does not cover the name.
  std::optional<std::string> ours(const std::string& name) const { return translate(name, true); }
  bool dont_load(const std::string& path) {
    bool any = false;
    for (size_t i = 0; i < dont_load_.size(); ++i)
      if (std::regex_match(path, dont_load_[i])) hits_[i] = any = true;
    return any;
  }
  // True if this pattern has matched a path that was passed to dont_load().
  bool has_matched(size_t pattern) const { return hits_[pattern]; }

 private:
  std::optional<std::string> translate(const std::string& name, bool back) const {
    const std::pair<std::string, std::string>* best = nullptr;
    auto from = [back](const auto& p) -> const std::string& { return back ? p.second : p.first; };
    for (const auto& p : pairs_)
      if (behind(name, from(p)) && (!best || from(p).size() > from(*best).size())) best = &p;
    if (!best) return {};
    return joined(back ? best->first : best->second, *behind(name, from(*best)));
  }

  std::vector<std::pair<std::string, std::string>> pairs_;
  std::vector<std::regex> dont_load_;
  std::vector<bool> hits_;  // by pattern
};

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// True if both are square tables of equal width. The file's table may begin with a class token's
// row.
bool can_resample(const std::vector<int64_t>& file, const std::vector<int64_t>& ours) {
  if (file.size() != 3 || ours.size() != 3 || file[0] != 1 || ours[0] != 1 || file[2] != ours[2])
    return false;
  return file[1] <= kMaxGridRows && (grid_side(file[1]) > 0 || grid_side(file[1] - 1) > 0) &&
         grid_side(ours[1]) > 0;
}

void refuse(const WeightFile& file, std::vector<std::string> problems, bool nothing,
            const std::string& example) {
  size_t all = problems.size();
  if (all > kMaxLines) {
    problems.resize(kMaxLines);
    problems.push_back(fmt::format("and {} more", all - kMaxLines));
  }
  std::string first;
  for (size_t i = 0; i < std::min<size_t>(3, file.tensors().size()); ++i)
    first += fmt::format("{}{}", i ? ", " : "", file.tensors()[i].name);
  base::fail(
      base::Exit::checkpoint,
      "init.from: {} does not fit this model:\n  {}\n{}To leave parameters random, or tensors of "
      "the file unread, name them in init.dont_load, e.g. [\"{}\"]; init.map maps other names",
      file.path(), base::join(problems, "\n  "),
      nothing ? fmt::format("Not one tensor could be loaded; the names in the file begin with {}. ",
                            first)
              : "",
      example);
}

}  // namespace

InitPlan plan_init(const std::vector<Wanted>& wanted, const WeightFile& file,
                   const InitOptions& options) {
  const std::vector<FileTensor>& tensors = file.tensors();
  Names names(options, tensors);
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < tensors.size(); ++i) index[tensors[i].name] = i;
  std::vector<bool> taken(tensors.size());
  InitPlan plan;
  std::vector<std::string> problems;
  std::string example;
  auto problem = [&](const std::string& path, std::string text) {
    if (problems.empty()) example = path;
    problems.push_back(std::move(text));
  };

  // Finds the average of a tensor, if the deck asks for averages and the file has one.
  const std::string weight_root = kWeightRoot.substr(1), average_root = kAverageRoot.substr(1);
  auto averaged = [&](const std::string& name) {
    if (!options.average || !name.starts_with(weight_root)) return index.end();
    return index.find(average_root + name.substr(weight_root.size()));
  };
  if (options.average && std::none_of(tensors.begin(), tensors.end(), [&](const FileTensor& t) {
        return t.name.starts_with(average_root);
      }))
    base::fail(base::Exit::checkpoint,
               "init.weights = \"ema\": {} holds no average of weights; take \"raw\", or a "
               "checkpoint of a run with [ema]",
               file.path());

  for (size_t w = 0; w < wanted.size(); ++w) {
    const Wanted& p = wanted[w];
    std::string ours = fmt::format("{} {}", p.path, shape_text(p.shape));
    std::optional<std::string> theirs = names.theirs(p.path);
    bool leave = names.dont_load(p.path);
    if (!theirs) {
      plan.unmapped.push_back(ours);
      continue;
    }
    auto found = index.find(*theirs);
    if (auto average = averaged(*theirs); average != index.end()) {
      if (found != index.end()) taken[found->second] = true;
      found = average;
    }
    if (found == index.end()) {
      if (leave)
        plan.missing.push_back(ours);
      else
        problem(p.path, fmt::format("missing in the file: {} (looked for {})", ours, *theirs));
      continue;
    }
    const FileTensor& t = tensors[found->second];
    taken[found->second] = true;
    if (leave) {
      plan.skipped.push_back(fmt::format("{} (dont_load)", ours));
    } else if (!t.type) {
      problem(
          p.path,
          fmt::format("{}: the file holds {}, which is no weight; f32, f64, f16 and bf16 are read",
                      p.path, describe(t)));
    } else if (t.shape == p.shape) {
      plan.loads.push_back({w, found->second, false});
    } else if (p.grid && !options.resample) {
      plan.skipped.push_back(
          fmt::format("{} (posemb = \"keep\"; the file has {})", ours, shape_text(t.shape)));
    } else if (p.grid && can_resample(t.shape, p.shape)) {
      plan.loads.push_back({w, found->second, true});
    } else {
      problem(p.path, fmt::format("{}: the file has {}, this model {}", p.path, shape_text(t.shape),
                                  shape_text(p.shape)));
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (taken[i]) continue;
    std::optional<std::string> ours = names.ours(tensors[i].name);
    if (!ours || names.dont_load(*ours))
      plan.unused.push_back(describe(tensors[i]));
    else
      problem(*ours, fmt::format("only in the file: {}", describe(tensors[i])));
  }
  // A user's pattern that matches nothing is a mistake: the tensor it should keep random was
  // loaded.
  const std::vector<std::string> published = InitOptions().dont_load;
  for (size_t i = 0; i < options.dont_load.size(); ++i)
    if (!names.has_matched(i) &&
        std::find(published.begin(), published.end(), options.dont_load[i]) == published.end())
      problem("decoder/.*",
              fmt::format("init.dont_load \"{}\" matches no parameter of this model and no name in "
                          "the file: it must match a whole path such as {}",
                          options.dont_load[i], wanted.empty() ? "" : wanted[0].path));
  if (plan.loads.empty() && problems.empty()) {
    problems.push_back("nothing is left to load");
    example = "decoder/.*";
  }
  if (!problems.empty()) refuse(file, std::move(problems), plan.loads.empty(), example);
  std::sort(plan.loads.begin(), plan.loads.end(),
            [](const InitPlan::Load& a, const InitPlan::Load& b) { return a.source < b.source; });
  return plan;
}

}  // namespace checkpoint
