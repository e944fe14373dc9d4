// SPDX-License-Identifier: Apache-2.0
#include "eval/labelled_features.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/memory_limit.hpp"
#include "base/text.hpp"

namespace eval {
namespace {

const models::Tap& tap_of(const Context& context) {
  return dynamic_cast<models::EmbedPass&>(*context.pass).taps().at(0);
}

// A fit could pass over such a row, and give a plausible number. All ranks have all features.
void refuse_nonfinite(const Context& context, const data::Dataset& set, const FeatureTable& table) {
  const auto bad =
      std::find_if(table.x.begin(), table.x.end(), [](float v) { return !std::isfinite(v); });
  if (bad == table.x.end()) return;
  throw base::Error(
      base::Exit::nonfinite,
      fmt::format("[data.{}]: the features \"{}\" of {} are not finite, and nothing can be fitted "
                  "to them: its numbers are not, or the weights have grown too far",
                  set.name(), tap_of(context).name,
                  base::one_line(set.key((bad - table.x.begin()) / table.features))),
      true);
}

}  // namespace

std::unique_ptr<models::ForwardPass> make_tap_pass(const models::Model& model,
                                                   const std::string& tap) {
  auto* embedder = dynamic_cast<const models::Embedder*>(&model);
  return embedder ? embedder->make_embed_pass({tap.empty() ? embedder->feature_tap() : tap})
                  : nullptr;
}

int32_t label_of(const data::Dataset& set, const models::HostBatch& batch, int64_t i) {
  const int32_t label = batch.features.at("label").i32()[i];
  if (label < 0 || label >= kMaxClasses)
    base::fail(base::Exit::data, "[data.{}]: label {} of {} is not in [0, {})", set.name(), label,
               set.key(batch.first_position + i), kMaxClasses);
  return label;
}

int64_t feature_count(const Context& context) { return tap_of(context).count(); }

bool embed(const Context& context, const data::Dataset& set, const std::string& stage,
           const Journal::Take& restore, const std::function<void(const Embedded& images)>& visit) {
  auto& pass = dynamic_cast<models::EmbedPass&>(*context.pass);
  const Rounds rounds(context, set, stage, restore);
  std::vector<float> features(size_t(context.batch * feature_count(context)));
  auto loader = rounds.loader(context, [](int64_t p) { return p; });
  for (int64_t round = 0; round < rounds.count(); ++round) {
    if (context.interrupted()) return false;
    data::BatchPtr batch = loader->next();
    const models::HostBatch host = data::host_batch(*batch, rounds.first(round));
    context.forward(
        [&](const models::Inputs& into) { pass.prepare(host, into); },
        [&](nn::Context& ctx, const models::Inputs& in) { pass.run(ctx, in, {features.data()}); });
    const int64_t first = rounds.first(round);
    const int64_t count = std::clamp<int64_t>(set.size() - first, 0, host.examples);
    visit({first, count, features.data(), host});
    if (context.journal) context.journal->write();
  }
  return true;
}

LabelledRows labelled_rows(const FeatureTable& table) {
  LabelledRows rows{table.x.data(), table.features, {table.answer.begin(), table.answer.end()}, 0};
  rows.classes = 1 + int64_t(*std::max_element(rows.labels.begin(), rows.labels.end()));
  return rows;
}

void answer_label(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
                  std::span<float> answers) {
  answers[0] = float(label_of(set, batch, i));
}

bool gather_features(const Context& context, const data::Dataset& set, const std::string& stage,
                     int64_t answers, const AnswerOf& answer_of, int64_t further_bytes,
                     FeatureTable& out) {
  out.rows = set.size();
  out.features = feature_count(context);
  out.answers = answers;
  const int64_t width = out.features;
  need_feature_memory(context, set, "",
                      out.rows * (width + answers) * int64_t(sizeof(float)) + further_bytes);
  out.x.assign(size_t(out.rows * width), 0.0f);
  out.answer.assign(size_t(out.rows * answers), 0.0f);
  std::vector<float> kept(size_t(width + answers));  // what the journal keeps of an image
  auto place = [&](int64_t position) {
    std::copy_n(kept.begin(), width, out.x.begin() + position * width);
    std::copy_n(kept.begin() + width, answers, out.answer.begin() + position * answers);
  };
  const bool complete = embed(
      context, set, stage,
      [&](int64_t position, std::string_view bytes) {
        copy_values(bytes, std::span(kept));
        place(position);
      },
      [&](const Embedded& images) {
        for (int64_t i = 0; i < images.count; ++i) {
          // x + 0 turns -0 into 0, as a sum over ranks does.
          for (int64_t f = 0; f < width; ++f)
            kept[size_t(f)] = images.features[i * width + f] + 0.0f;
          answer_of(set, images.batch, i, std::span(kept).last(size_t(answers)));
          place(images.first + i);
          if (context.journal) context.journal->add(images.first + i, std::span<const float>(kept));
        }
      });
  if (!complete) return false;
  share_values(context.world, out.x);
  share_values(context.world, out.answer);
  refuse_nonfinite(context, set, out);
  return true;
}

void need_feature_memory(const Context& context, const data::Dataset& set, const std::string& keys,
                         int64_t bytes) {
  const std::string& tap = tap_of(context).name;
  const std::string purpose =
      fmt::format("the features \"{}\" of {} images and the work on them (tap, {}data.{}.limit)",
                  tap, set.size(), keys, set.name());
  base::need_address_space(bytes, purpose);
  const int64_t memory = int64_t(::sysconf(_SC_PHYS_PAGES)) * int64_t(::sysconf(_SC_PAGESIZE));
  if (bytes > memory)
    base::fail(base::Exit::mesh, "{} need {} MiB on each rank, and this machine has {} MiB",
               purpose, bytes >> 20, memory >> 20);
}

}  // namespace eval
