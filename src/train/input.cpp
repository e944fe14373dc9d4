// SPDX-License-Identifier: Apache-2.0
#include "train/input.hpp"

#include <algorithm>

#include "base/cancel.hpp"
#include "base/clock.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "data/sources/index_bytes.hpp"
#include "data/sources/staging.hpp"

namespace train {
namespace log = base::log;

std::set<std::string> data_sets_of(const std::map<std::string, eval::EvalOptions>& evaluations) {
  std::set<std::string> names;
  for (const auto& [name, options] : evaluations)
    for (const auto& [key, set] : eval::data_sets_of(options)) names.insert(set);
  return names;
}

std::string stage_data(comm::Session& session, const Recipe& recipe,
                       const std::set<std::string>& names, const comm::Poll& poll) {
  if (recipe.data.loader.stage_dir.empty()) return "";
  comm::Comm& world = session.world();
  // One rank of each node lists the files and copies them, because listing may take long.
  std::set<std::string> files;
  auto list = [&](const std::stop_token& token) -> std::string {
    if (session.local_rank() != 0) return "";
    for (const std::string& name : names) {
      base::end_if_asked(token);
      try {
        std::vector<std::string> own = recipe.data.data.at(name).source_options()->files();
        files.insert(own.begin(), own.end());
      } catch (const base::Error& e) {
        base::fail(e.code(), "data.{}: {}", name, e.what());
      }
    }
    return "";
  };
  comm::beside(world, list, poll);
  if (world.max(int64_t(files.size())) == 0) return "";

  base::Stopwatch watch;
  std::string directory;
  data::Staged staged;
  auto copy = [&](const std::stop_token& token) -> std::string {
    try {
      directory = data::expand_variables(recipe.data.loader.stage_dir);
      if (session.local_rank() == 0)
        staged = data::stage_files({files.begin(), files.end()}, directory,
                                   int(recipe.data.loader.threads), token);
      return "";
    } catch (const base::Error& e) {  // disks and variables differ between nodes
      base::fail(e.code(), "on {}: {}", session.host(), e.what());
    }
  };
  comm::beside(world, copy, poll);
  int64_t nodes = world.sum(int64_t(session.local_rank() == 0)),
          copied = world.sum(staged.copied_files), bytes = world.sum(staged.copied_bytes);
  log::line(
      "stage    {} on {} node{}: {} files, {} MiB each; copied {} files, {} MiB in all  s={:.1f}",
      directory, nodes, nodes == 1 ? "" : "s", staged.files, base::mebibytes(staged.bytes), copied,
      base::mebibytes(bytes), watch.seconds());
  return directory;
}

std::unique_ptr<data::Mixture> open_training_data(const Recipe& recipe,
                                                  const data::Tokenizers& tokenizers,
                                                  const data::OpenContext& context) {
  const TrainOptions& train = recipe.train;
  data::BlockShape shape{train.shuffle_block, train.shuffle_window};
  std::map<std::string, double> weights = train.parts();
  std::map<std::string, data::Mixture::Part> parts;
  for (const auto& [name, weight] : weights) {
    std::shared_ptr<const data::Dataset> set =
        data::open_dataset(recipe.data, tokenizers, name, context);
    if (set->size() < 1) base::fail(base::Exit::data, "[data.{}] holds no sample", name);
    // A single data set has the plain stream; each data set of a mixture has a stream of its own.
    const std::string stream = train.mixture.empty() ? "" : name;
    const uint64_t seed = uint64_t(recipe.run.seed);
    const bool stratified = train.shuffle == data::Shuffle::stratified;
    if (stratified || train.shuffle == data::Shuffle::classes) {
      const data::DataOptions& own = recipe.data.data.at(name);
      const auto classes = std::make_shared<const data::Classes>(
          set->classes(own.source_options()->spec(), own.class_field, context));
      const data::Strata strata{train.classes_per_batch, train.global_batch};
      parts[name] = {set, stratified ? data::Order(classes, strata, seed)
                                     : data::Order(classes, train.class_power, seed, stream)};
    } else {
      parts[name] = {set, data::Order(train.shuffle, set->size(), seed, shape, stream)};
    }
  }
  return std::make_unique<data::Mixture>(parts, weights);
}

std::map<std::string, std::vector<std::string>> list_shares(comm::Comm& world, const Recipe& recipe,
                                                            const std::set<std::string>& names,
                                                            const data::OpenContext& context,
                                                            const comm::Poll& poll) {
  std::map<std::string, std::vector<std::string>> shares;
  if (world.size() == 1) return shares;
  auto source = [&](const std::string& name) { return recipe.data.data.at(name).source_options(); };
  auto look = [&](const std::stop_token&) {
    data::IndexWriter text;
    for (const std::string& name : names) try {
        text.text(source(name)->lacks_list(context));
      } catch (const base::Error&) {
        text.text("");  // the error is reported when the set is opened
      }
    return std::move(text.out);
  };
  std::vector<data::IndexReader> answers;
  const std::vector<std::string> texts = comm::beside(world, look, poll);
  for (const std::string& text : texts) answers.emplace_back(text);
  std::map<std::string, std::string> sets;  // what shares are called, the data set
  for (const std::string& name : names) {
    std::set<std::string> called;
    for (data::IndexReader& answer : answers) called.emplace(answer.text());
    if (called.size() == 1 && !called.begin()->empty()) sets[*called.begin()] = name;
  }
  if (sets.empty()) return shares;
  auto list = [&](const std::stop_token& token) {
    data::OpenContext with_token = context;
    with_token.token = token;
    data::IndexWriter text;
    for (const auto& [files, name] : sets)
      text.text(source(name)->list_share(with_token, world.rank(), world.size()));
    return std::move(text.out);
  };
  for (const std::string& text : comm::beside(world, list, poll)) {
    data::IndexReader reader(text);
    for (const auto& [files, name] : sets) shares[files].emplace_back(reader.text());
  }
  std::erase_if(shares, [](const auto& all) {
    return std::ranges::any_of(all.second, [](const std::string& share) { return share.empty(); });
  });
  return shares;
}

std::string data_text(const data::Mixture& data, bool earlier) {
  std::string text;
  for (const data::Mixture::Part& p : data.parts()) {
    const data::Dataset& set = *p.dataset;
    text += fmt::format("{}{} {} samples ({:016x})", text.empty() ? "" : ", ", set.name(),
                        base::with_commas(set.size()),
                        earlier ? set.earlier_fingerprint() : set.fingerprint());
  }
  return text;
}

void agree_on_data(comm::Comm& world, const std::vector<const data::Dataset*>& sets) {
  std::string mine;
  for (const data::Dataset* set : sets)
    mine += fmt::format("{}{} samples, fingerprint {:016x}", mine.empty() ? "" : "\n",
                        base::with_commas(set->size()), set->fingerprint());
  if (world.same(base::xxh3(mine))) return;
  std::vector<std::vector<std::string>> by_rank;  // [rank][set]
  for (const std::string& text : world.gather_text(mine))
    by_rank.push_back(base::split(text, '\n'));
  for (size_t s = 0; s < sets.size(); ++s) {
    std::vector<std::pair<std::string, std::vector<size_t>>>
        views;  // text of a set, ranks that see it
    for (size_t r = 0; r < by_rank.size(); ++r) {
      auto same = std::find_if(views.begin(), views.end(),
                               [&](const auto& v) { return v.first == by_rank[r].at(s); });
      if (same == views.end()) same = views.insert(same, {by_rank[r][s], {}});
      same->second.push_back(r);
    }
    if (views.size() == 1) continue;
    constexpr size_t kMaxListed = 8;
    std::string text;
    for (const auto& [view, ranks] : views) {
      text += fmt::format("{}rank{} ", text.empty() ? "" : "; ", ranks.size() == 1 ? "" : "s");
      for (size_t i = 0; i < std::min(ranks.size(), kMaxListed); ++i)
        text += fmt::format("{}{}", i ? ", " : "", ranks[i]);
      if (ranks.size() > kMaxListed) text += fmt::format(" and {} more", ranks.size() - kMaxListed);
      text += ": " + view;
    }
    std::string problem = fmt::format(
        "[data.{}]: the ranks do not read the same data ({}); bring the copies up to date, or use "
        "one that all nodes share (loader.stage_dir makes fresh copies)",
        sets[s]->name(), text);
    throw base::Error(base::Exit::data, problem, true);
  }
}

data::LoaderPlan training_plan(const step::Geometry& g, const comm::Mesh& mesh, int64_t first_step,
                               int64_t last_step, int64_t offset) {
  data::LoaderPlan plan;
  // The plan copies the first example of each pass, so it may outlive the mesh.
  std::vector<int64_t> first_of_pass;
  for (int64_t m = 0; m < g.accumulation; ++m) first_of_pass.push_back(g.first_example(mesh, m));
  plan.positions = [g, first_of_pass, offset](int64_t batch) {
    int64_t first = offset + batch / g.accumulation * g.global_batch +
                    first_of_pass[size_t(batch % g.accumulation)];
    std::vector<int64_t> out(static_cast<size_t>(g.micro_batch));
    for (int64_t i = 0; i < g.micro_batch; ++i) out[size_t(i)] = first + i;
    return out;
  };
  plan.first = first_step * g.accumulation;
  plan.end = last_step * g.accumulation;
  return plan;
}

}  // namespace train
