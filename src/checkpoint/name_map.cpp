// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/name_map.hpp"

#include <algorithm>
#include <map>

#include "base/pattern.hpp"
#include "base/text.hpp"
#include "checkpoint/resample.hpp"
#include "checkpoint/state.hpp"
#include "checkpoint/torch_names.hpp"
#include "checkpoint/trunk_difference.hpp"

namespace checkpoint {
namespace {

constexpr size_t kMaxLines = 50;
constexpr int64_t kMaxGridRows = 1 << 16;  // 256 x 256 patches

// Returns the rest of `name` behind a prefix that ends at a slash, or at a dot as in names of
// PyTorch. The prefix "" leaves all of `name`.
std::optional<std::string> behind(const std::string& name, const std::string& prefix) {
  if (prefix.empty() || name == prefix) return prefix.empty() ? name : "";
  if (name.size() > prefix.size() && name.starts_with(prefix) &&
      (name[prefix.size()] == '/' || name[prefix.size()] == '.'))
    return name.substr(prefix.size() + 1);
  return {};
}
std::string joined(const std::string& prefix, const std::string& rest, char between) {
  return prefix.empty() || rest.empty() ? prefix + rest : prefix + between + rest;
}

// Returns the group that holds the parameters in the file: params, opt/target (an older layout), a
// usual key of PyTorch programs, or "".
std::string root_of(const std::vector<FileTensor>& tensors) {
  for (const char* root : {"params", "opt/target", "state_dict", "model_state_dict", "model"})
    for (const FileTensor& t : tensors)
      if (behind(t.name, root)) return root;
  return "";
}

class Names {
 public:
  // `translated`: the names of the tensors are paths of ours already.
  Names(const InitOptions& options, const std::vector<FileTensor>& tensors, bool translated) {
    for (const auto& [ours, theirs] : options.map) pairs_.emplace_back(ours, theirs);
    if (pairs_.empty()) pairs_.emplace_back("", translated ? "" : root_of(tensors));
    for (const std::string& pattern : options.dont_load) dont_load_.emplace_back(pattern);
    hits_.resize(dont_load_.size());
  }
  // Returns the file's name for a parameter path, with a slash or a dot behind a prefix of the map;
  // none if the map leaves the path out.
  std::optional<std::string> theirs(const std::string& path, char between) const {
    return translate(path, false, between);
  }
  // Returns the parameter path for a name of the file; none if the map does not cover the name.
  std::optional<std::string> ours(const std::string& name) const {
    return translate(name, true, '/');
  }
  bool dont_load(const std::string& path) {
    bool any = false;
    for (size_t i = 0; i < dont_load_.size(); ++i)
      if (dont_load_[i].matches(path)) hits_[i] = any = true;
    return any;
  }
  // True if this pattern has matched a path that was passed to dont_load().
  bool has_matched(size_t pattern) const { return hits_[pattern]; }

 private:
  std::optional<std::string> translate(const std::string& name, bool back, char between) const {
    const std::pair<std::string, std::string>* best = nullptr;
    auto from = [back](const auto& p) -> const std::string& { return back ? p.second : p.first; };
    for (const auto& p : pairs_)
      if (behind(name, from(p)) && (!best || from(p).size() > from(*best).size())) best = &p;
    if (!best) return {};
    return joined(back ? best->first : best->second, *behind(name, from(*best)), between);
  }

  std::vector<std::pair<std::string, std::string>> pairs_;
  std::vector<base::Pattern> dont_load_;
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

void refuse(base::Exit code, const WeightFile& file, std::vector<std::string> problems,
            bool nothing, const std::string& example) {
  size_t all = problems.size();
  if (all > kMaxLines) {
    problems.resize(kMaxLines);
    problems.push_back(fmt::format("and {} more", all - kMaxLines));
  }
  std::string first;
  for (size_t i = 0; i < std::min<size_t>(3, file.tensors().size()); ++i)
    first += fmt::format("{}{}", i ? ", " : "", file.tensors()[i].name);
  base::fail(
      code,
      "init.from: {} does not fit this model:\n  {}\n{}To leave parameters random, or tensors of "
      "the file unread, name them in init.dont_load, e.g. [\"{}\"]; init.map maps other names",
      file.path(), base::join(problems, "\n  "),
      nothing ? fmt::format("Not one tensor could be loaded; the names in the file begin with {}. ",
                            first)
              : "",
      example);
}

// Returns the names of a PyTorch program if such programs have the model's trunk and the deck has
// no map.
std::optional<TorchNames> torch_names(const WeightFile& file, const InitOptions& options,
                                      const models::TrunkWeights& trunk) {
  return trunk.torch && options.map.empty() ? TorchNames::of(file, *trunk.torch) : std::nullopt;
}

std::string all_but(const std::string& root) { return fmt::format("(?!{}).*", root); }

// By default, only the trunk is loaded from files of PyTorch programs, as linear probes need. root:
// that of the trunk in such a file, or "".
InitOptions with_default(InitOptions options, const std::string& root) {
  if (!root.empty() && options.dont_load == InitOptions().dont_load)
    options.dont_load = {all_but(root)};
  return options;
}

// Builds the plan parameter by parameter and collects the problems.
class InitPlanner {
 public:
  InitPlanner(const WeightFile& file, const InitOptions& options, const models::TrunkWeights& trunk,
              Use use)
      : file_(file),
        trunk_(trunk),
        use_(use),
        torch_(torch_names(file, options, trunk)),
        root_(torch_ ? trunk.torch->root : file.translated_root()),
        options_(with_default(options, root_)),
        tensors_(file.tensors()),
        names_(options_, tensors_, !root_.empty()),
        taken_(tensors_.size()) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const std::optional<std::string> ours =
          torch_ ? torch_->ours(tensors_[i].name) : tensors_[i].name;
      if (ours) index_[*ours] = i;
    }
    if (options.average && std::none_of(tensors_.begin(), tensors_.end(), [](const FileTensor& t) {
          return t.name.starts_with(average_root());
        }))
      base::fail(base::Exit::checkpoint,
                 "init.weights = \"ema\": {} holds no average of weights; take \"raw\", or a "
                 "checkpoint of a run with [ema]",
                 file.path());
  }

  InitPlan plan(const std::vector<Wanted>& wanted) {
    for (size_t w = 0; w < wanted.size(); ++w) match(w, wanted[w]);
    list_unused();
    if (!problems_.empty()) explain_trunk(wanted);
    check_patterns(wanted.empty() ? "" : wanted[0].path);
    if (plan_.loads.empty() && problems_.empty()) problem("decoder/.*", "nothing is left to load");
    if (!problems_.empty())
      refuse(code_, file_, std::move(problems_), plan_.loads.empty(), example_);
    std::sort(plan_.loads.begin(), plan_.loads.end(),
              [](const InitPlan::Load& a, const InitPlan::Load& b) { return a.source < b.source; });
    return std::move(plan_);
  }

 private:
  using Index = std::map<std::string, size_t>;

  static std::string average_root() { return kAverageRoot.substr(1); }

  void problem(const std::string& path, std::string text) {
    if (problems_.empty()) example_ = path;
    problems_.push_back(std::move(text));
  }

  // Finds the average of a tensor, if the deck asks for averages and the file has one.
  Index::const_iterator find_average(const std::string& name) const {
    const std::string weight_root = kWeightRoot.substr(1);
    if (!options_.average || !name.starts_with(weight_root)) return index_.end();
    return index_.find(average_root() + name.substr(weight_root.size()));
  }

  void explain_trunk(const std::vector<Wanted>& wanted) {
    models::TensorShapes there;
    for (const auto& [name, i] : index_)
      if (const std::optional<std::string> ours = names_.ours(name))
        there[*ours] = tensors_[i].shape;
    if (std::string text = trunk_difference(there, wanted, trunk_); !text.empty()) {
      problems_.insert(problems_.begin(), std::move(text));
      code_ = base::Exit::config;  // keys of the deck are wrong
    }
  }

  // Returns the file's name with a slash behind the prefix; with a dot if only that name exists.
  std::optional<std::string> name_in_file(const std::string& path) const {
    std::optional<std::string> name = names_.theirs(path, '/'), dotted = names_.theirs(path, '.');
    return dotted && !index_.contains(*name) && index_.contains(*dotted) ? dotted : name;
  }

  void match(size_t w, const Wanted& p) {
    const std::string ours = fmt::format("{} {}", p.path, shape_text(p.shape));
    const std::optional<std::string> theirs = name_in_file(p.path);
    const bool leave = names_.dont_load(p.path);
    if (!theirs) {
      plan_.unmapped.push_back(ours);
      return;
    }
    auto found = std::as_const(index_).find(*theirs);
    if (auto average = find_average(*theirs); average != index_.end()) {
      if (found != index_.end()) taken_[found->second] = true;
      found = average;
    }
    if (found == index_.end()) {
      if (leave || is_counter(p.path))
        plan_.missing.push_back(ours);
      else
        problem(p.path, fmt::format("missing in the file: {} (looked for {})", ours,
                                    torch_ ? torch_->theirs(*theirs) : *theirs));
      return;
    }
    taken_[found->second] = true;
    if (leave && use_ == Use::begins)
      plan_.skipped.push_back(fmt::format("{} (dont_load)", ours));
    else if (const std::string text = load(w, p, found->second); text.empty())
      return;
    else if (leave)
      plan_.skipped.push_back(fmt::format("{} (dont_load; {})", ours, text));
    else
      problem(p.path, fmt::format("{}: {}", p.path, text));
  }

  // Plans to load tensor `source` into a parameter. Returns the problem if type and shape do not
  // allow it.
  std::string load(size_t w, const Wanted& p, size_t source) {
    const FileTensor& t = tensors_[source];
    const bool whole_number = t.type == device::DType::i64;
    if (!t.type || (whole_number && !is_counter(p.path)))
      return fmt::format(
          "the file holds {}, which is not a type of weights; f32, f64, f16 and bf16 are read",
          describe(t));
    if (torch_ && p.path == "head/kernel" && t.shape.size() == 2 &&
        std::vector<int64_t>{t.shape[1], t.shape[0]} == p.shape) {
      plan_.loads.push_back({.wanted = w, .source = source, .transpose = true});
    } else if (t.shape == p.shape) {
      plan_.loads.push_back({w, source, false});
    } else if (p.grid && !options_.resample) {
      plan_.skipped.push_back(fmt::format("{} {} (posemb = \"keep\"; the file has {})", p.path,
                                          shape_text(p.shape), shape_text(t.shape)));
    } else if (p.grid && can_resample(t.shape, p.shape)) {
      plan_.loads.push_back({w, source, true});
    } else {
      return fmt::format("the file has {}, this model {}", shape_text(t.shape),
                         shape_text(p.shape));
    }
    return "";
  }

  void list_unused() {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (taken_[i]) continue;
      const std::optional<std::string> ours =
          torch_ ? torch_->ours(tensors_[i].name) : names_.ours(tensors_[i].name);
      if (!ours || names_.dont_load(*ours) || (trunk_.torch && is_beside(*ours, *trunk_.torch)))
        plan_.unused.push_back(describe(tensors_[i]));
      else
        problem(*ours, fmt::format("only in the file: {}", describe(tensors_[i])));
    }
  }

  // A user's pattern that matches nothing is a mistake: the tensor it should keep random was
  // loaded.
  void check_patterns(const std::string& first_path) {
    std::vector<std::string> published = InitOptions().dont_load;
    if (!root_.empty()) published.push_back(all_but(root_));
    for (size_t i = 0; i < options_.dont_load.size(); ++i)
      if (!names_.has_matched(i) &&
          std::find(published.begin(), published.end(), options_.dont_load[i]) == published.end())
        problem("decoder/.*",
                fmt::format("init.dont_load \"{}\" matches no parameter of this model and no name "
                            "in the file: it must match a whole path such as {}",
                            options_.dont_load[i], first_path));
  }

  const WeightFile& file_;
  const models::TrunkWeights& trunk_;
  const Use use_;
  const std::optional<TorchNames> torch_;
  const std::string root_;  // of the trunk's paths, if the names are another program's; or ""
  const InitOptions options_;
  const std::vector<FileTensor>& tensors_;
  Names names_;
  Index index_;  // tensors of the file by name; by our path in files of PyTorch programs
  std::vector<bool> taken_;  // by tensor of the file
  InitPlan plan_;
  std::vector<std::string> problems_;
  base::Exit code_ = base::Exit::checkpoint;
  std::string example_;  // path of the first problem's parameter
};

}  // namespace

InitPlan plan_init(const std::vector<Wanted>& wanted, const WeightFile& file,
                   const InitOptions& options, const models::TrunkWeights& trunk, Use use) {
  return InitPlanner(file, options, trunk, use).plan(wanted);
}

}  // namespace checkpoint
