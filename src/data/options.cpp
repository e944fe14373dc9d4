// SPDX-License-Identifier: Apache-2.0
#include "data/options.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/path.hpp"
#include "base/text.hpp"
#include "data/hint.hpp"
#include "data/ops/pipeline.hpp"

namespace data {

using base::Exit;
using config::OnResume;

namespace {

template <class T>
const T& named(const std::map<std::string, T>& entries, const std::string& name,
               const char* section) {
  auto it = entries.find(name);
  if (it != entries.end()) return it->second;
  std::vector<std::string> names;
  for (auto& [n, entry] : entries) names.push_back(n);
  base::fail(Exit::config, "there is no [{}.{}]{}; there is {}", section, name,
             nearest_hint(name, names), list_of(names));
}

bool is_reference(const std::string& preprocess) { return preprocess.starts_with('@'); }

}  // namespace

void DataOptions::bind(config::Table& t) {
  t.kind("kind", kind, source, source_rows(), "where the samples come from");
  t.key("preprocess", preprocess,
        "ops from left to right, 'decode | resize(224) | ...'; \"@NAME\": the same as [data.NAME]; "
        "\"\": none")
      .check(
          [this] { return is_reference(preprocess) ? std::string() : syntax_problem(preprocess); });
  t.key("limit", part.limit, "number of samples to use, drawn by limit_seed; 0 = all").min(0);
  t.key("skip", part.skip,
        "number of drawn samples to leave out first; parts of one source share no sample if they "
        "have the same limit_seed and limit_per, and their ranges [skip, skip + limit) do not "
        "overlap")
      .min(0);
  t.key("fraction", part.fraction, "share of the samples to use, instead of limit; 0 = all")
      .min(0)
      .max(1);
  t.key("skip_fraction", part.skip_fraction,
        "share of the drawn samples to leave out first, instead of skip")
      .min(0)
      .max(1);
  t.choice(
      "limit_per", part.per_class, {{"set", false}, {"class", true}},
      "what limit, skip and the fractions count: set: the whole set; class: each class, so "
      "that limit gives equally many samples of all classes, and a fraction keeps their shares");
  t.key("class_field", class_field,
        "field of the source, before any op, that holds the class: a whole number or a text; for "
        "limit_per = \"class\" and train.shuffle = \"classes\"");
  t.key("limit_seed", part.seed, "draws the samples of a part; independent of run.seed").min(0);
  const bool counts = part.limit > 0 || part.skip > 0;
  if (counts && (part.fraction > 0 || part.skip_fraction > 0))
    t.error(part.fraction > 0 ? "fraction" : "skip_fraction",
            "limit or skip is set, too: give either counts or fractions");
  if (part.skip_fraction + part.fraction > 1 + 1e-9)
    t.error("skip_fraction", fmt::format("{} and fraction = {} add up to more than 1",
                                         part.skip_fraction, part.fraction));
}

void TokenizerOptions::bind(config::Table& t) {
  t.kind("kind", kind, model, tokenizer_rows(), "how text becomes ids");
}

void LoaderOptions::bind(config::Table& t) {
  t.key("threads", threads, "decoding threads per rank")
      .min(1)
      .max(256)
      .on_resume(OnResume::may_change);
  t.key("prefetch", prefetch, "batches ahead")
      .unit("batches")
      .min(1)
      .max(1024)
      .on_resume(OnResume::may_change);
  t.key("index_dir", index_dir,
        "tar indexes; \"\" = beside the data, or RUN/index where that is read-only")
      .unit("path")
      .on_resume(OnResume::may_change);
  t.key("index_mb", index_mb,
        "tar indexes that a rank keeps mapped; the ranks of a node share them")
      .unit("MiB")
      .min(1)
      .max(1 << 20)
      .on_resume(OnResume::may_change);
  t.key("stage_dir", stage_dir,
        "copy the shards to this node-local directory first, once per node, e.g. \"$TMPDIR\"; \"\" "
        "= read in place")
      .check([this] { return base::path_problem(stage_dir, true); })
      .on_resume(OnResume::may_change);
  t.choice("on_bad_sample", substitutes, {{"error", false}, {"substitute", true}},
           "error: end with exit 4; substitute: use a fixed neighbour and log the key once in "
           "logs/bad_samples.txt")
      .on_resume(OnResume::may_change);
  t.key("max_bad_sample_fraction", max_bad_sample_fraction,
        "with substitute: more broken samples than this share of their data set end the run with "
        "exit 4; 1e-4 allows 1 in 10,000 and none in smaller sets")
      .min(0)
      .max(1)
      .on_resume(OnResume::may_change);
}

void Sections::bind(config::Table& root) {
  root.named("tokenizer", tokenizer, "tokenizers, named once, used by preprocess strings");
  root.named("data", data, "data sets, named once, used by train and evaluators");
  root.table("loader", loader,
             "how samples are read; changes no result as long as no sample is bad");
}

std::string Sections::preprocess_of(const std::string& name) const {
  std::string at = name;
  for (size_t steps = 0;; ++steps) {
    const std::string& text = named(data, at, "data").preprocess;
    if (!is_reference(text)) return text;
    if (steps > data.size()) base::fail(Exit::config, "\"{}\" leads back to itself", text);
    at = base::trim(text.substr(1));
  }
}

namespace {
Pipeline pipeline_of(const Sections& sections, const std::string& name, bool open) {
  const SourceOptions* source = named(sections.data, name, "data").source_options();
  CHECK(source, "data set '{}' has no source options", name);
  const Tokenizers known = sections.tokenizers();
  return Pipeline(sections.preprocess_of(name), source->spec(),
                  {.tokenizers = &known, .open = open});
}
}  // namespace

Spec Sections::spec_of(const std::string& name) const {
  return pipeline_of(*this, name, false).spec();
}
Spec Sections::opened_spec_of(const std::string& name) const {
  return pipeline_of(*this, name, true).spec();
}
std::optional<ByteScale> Sections::byte_scale_of(const std::string& name,
                                                 const std::string& field) const {
  return pipeline_of(*this, name, false).byte_scale(field);
}

std::vector<Problem> Sections::problems() const {
  std::vector<Problem> out;
  auto check = [&](const std::string& name, const DataOptions& options) {
    if (!options.source_options()) return;  // a wrong kind, already reported
    try {
      if (!syntax_problem(preprocess_of(name)).empty()) return;  // already reported
      spec_of(name);
    } catch (const base::Error& e) {
      // A file that would give the spec is missing here. Opening the set will report it.
      if (e.code() == Exit::data) return;
      auto same = [&](const Problem& p) { return p.text == e.what(); };
      if (is_reference(options.preprocess) && std::any_of(out.begin(), out.end(), same))
        return;  // already reported for the string itself
      out.push_back({fmt::format("data.{}.preprocess", name), e.what()});
    }
  };
  for (auto& [name, options] : data)
    if (!is_reference(options.preprocess)) check(name, options);
  for (auto& [name, options] : data)
    if (is_reference(options.preprocess)) check(name, options);
  return out;
}

Tokenizers Sections::tokenizers() const {
  std::map<std::string, std::shared_ptr<const TokenizerKindOptions>> models;
  for (auto& [name, options] : tokenizer)
    models[name] = std::dynamic_pointer_cast<const TokenizerKindOptions>(options.model);
  return Tokenizers(std::move(models));
}

}  // namespace data
