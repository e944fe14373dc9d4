// SPDX-License-Identifier: Apache-2.0
#include "train/evaluation_journal.hpp"

#include <set>
#include <utility>

#include "base/hash.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/digest.hpp"
#include "io/files.hpp"
#include "train/console.hpp"
#include "train/evaluations.hpp"
#include "train/version.hpp"

namespace train {
namespace {

// Keys of [eval.NAME] that say when it runs, and on which weights.
const std::set<std::string> kTimes = {"every", "at_start", "at_end", "weights"};

constexpr const char* kPartial = "/partial";  // the journal, in the folder of an evaluation

// Removes a journal, and the folders above it that hold nothing else, up to RUN/eval. A folder that
// cannot be removed stays.
void remove_journal(std::string folder) {
  try {
    io::remove_tree(folder + kPartial);
    for (int levels = 0; levels < 3 && io::remove_directory(folder); ++levels)
      folder = io::parent_of(folder);
  } catch (const io::Failure&) {
    return;
  }
}

std::vector<std::string> steps_of(const std::string& folder) {
  if (!io::is_directory(folder)) return {};
  return io::list_directory(folder);
}

// Returns all keys of a table as text, without those of kTimes.
std::string keys_of(const std::map<std::string, std::string>& deck, const std::string& table) {
  std::string text;
  for (auto row = deck.lower_bound(table); row != deck.end() && row->first.starts_with(table);
       ++row)
    if (!kTimes.contains(row->first.substr(table.size())))
      text += fmt::format("{}={}\n", row->first.substr(table.size()), row->second);
  return text;
}

}  // namespace

std::string weights_digest(const Job& job, step::Weights weights) {
  step::Engine& engine = job.engine();
  const std::string& root =
      weights == step::Weights::ema ? checkpoint::kAverageRoot : checkpoint::kWeightRoot;
  return checkpoint::hex(
      checkpoint::digest_of(*job.mesh().world, engine.state(), root, engine.queue()));
}

eval::Journal::Identity identity_of(const Evaluation& evaluation, const Job& job,
                                    const std::string& weights) {
  const std::map<std::string, std::string> deck = job.deck().flat();
  auto hash = [](const std::string& text) { return checkpoint::hex(base::xxh3(text)); };
  // An evaluation on the average is called NAME_ema.
  std::string table = "eval." + evaluation.name + ".";
  if (!deck.contains(table + "kind")) table = table.substr(0, table.rfind('_')) + ".";
  std::string data = keys_of(deck, "tokenizer.");
  auto add = [&](const data::Dataset& set) {
    data += fmt::format("{} {} {:x}\n", set.name(), set.size(), set.fingerprint());
  };
  add(*evaluation.dataset);
  for (const auto& [key, set] : evaluation.further) add(*set);
  for (const auto& [key, value] : deck)
    if (key.starts_with("data.") && key.ends_with(".preprocess"))
      data += fmt::format("{}={}\n", key, value);
  return {{"weights", weights},
          {"options", hash(keys_of(deck, table)) +
                          checkpoint::hex(evaluation.evaluator->fingerprint(*evaluation.dataset))},
          {"data", hash(data)},
          {"model", hash(keys_of(deck, "model."))},
          {"precision", hash(keys_of(deck, "precision.") + keys_of(deck, "determinism.") +
                             device::name_of(job.device().kind))},
          {"program", hash(kGitDescription + version() + build_features())}};
}

std::string Journals::folder_of(const std::string& evaluation) const {
  return fmt::format("{}/eval/{}/{:010}", attempt_.recipe.run.dir, evaluation, attempt_.state.step);
}

void Journals::begin() {
  digests_.clear();
  if (!std::exchange(swept_, true) && attempt_.leads()) sweep();
}

// Removes journals that earlier attempts left at steps to which no attempt returns, and lists the
// journals of this step as done.
void Journals::sweep() {
  step_ = attempt_.state.step;
  const std::string all = attempt_.recipe.run.dir + "/eval";
  if (!io::is_directory(all)) return;
  for (const std::string& name : io::list_directory(all))
    for (const std::string& step : steps_of(all + "/" + name)) {
      const std::string folder = all + "/" + name + "/" + step;
      if (!io::is_directory(folder + kPartial)) continue;
      if (folder < folder_of(name)) remove_journal(folder);
      if (folder == folder_of(name)) done_.push_back(folder);
    }
}

std::unique_ptr<eval::Journal> Journals::open(const Evaluation& evaluation, step::Weights weights) {
  if (!usable_ || attempt_.start.trial_steps > 0) return nullptr;
  if (step_ != attempt_.state.step) remove_done();
  step_ = attempt_.state.step;
  std::erase(done_, folder_of(evaluation.name));
  std::string& digest = digests_[weights];
  if (digest.empty()) digest = weights_digest(attempt_.job, weights);
  files_.watch(true);  // the folder is made only in a directory that is this job's
  return std::make_unique<eval::Journal>(
      attempt_.world(), folder_of(evaluation.name) + kPartial,
      fmt::format("eval={} step={}", evaluation.name, attempt_.state.step),
      identity_of(evaluation, attempt_.job, digest));
}

void Journals::finish(const std::string& evaluation, eval::Journal& journal) {
  usable_ = journal.finish();
  done_.push_back(folder_of(evaluation));
}

void Journals::drop(int64_t saved_step) {
  if (step_ <= saved_step) remove_done();
}

void Journals::remove_done() {
  for (const std::string& folder : done_)
    if (attempt_.leads()) remove_journal(folder);
  done_.clear();
}

}  // namespace train
