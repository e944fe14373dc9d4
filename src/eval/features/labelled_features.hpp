// SPDX-License-Identifier: Apache-2.0
// Features of labelled images, which all ranks compute together.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "data/stream/host_batch.hpp"
#include "eval/evaluator.hpp"
#include "eval/fits/least_squares.hpp"
#include "models/embedder.hpp"

namespace eval {

constexpr int64_t kMaxClasses = 1'000'000;

// Returns the pass that embeds images at one tap. Tap "" is the vector that a head reads. Null if
// the model turns no images into features.
std::unique_ptr<models::ForwardPass> make_tap_pass(const models::Model& model,
                                                   const std::string& tap);

// Returns the problem of a key's list of numbers: it is empty, or has a number twice. "" if there
// is none.
template <class T>
std::string problem_of_list(const std::vector<T>& list) {
  if (list.empty()) return "names no number";
  for (const T& value : list)
    if (std::count(list.begin(), list.end(), value) > 1)
      return fmt::format("{} is listed twice", value);
  return "";
}

// Returns the label of example i of the batch. Error(Exit::data) if it is not in [0, kMaxClasses).
int32_t label_of(const data::Dataset& set, const models::HostBatch& batch, int64_t i);

// Returns the number of features of an image.
int64_t feature_count(const Context& context);

// Some images of a set with their features, without padding.
struct Embedded {
  int64_t first = 0, count = 0;     // positions [first, first + count)
  const float* features = nullptr;  // [count, width of the tap]
  const models::HostBatch& batch;
};

// Computes numbers of each image in each pass over a set, as a stage of the journal. make(images,
// to) writes the numbers of a batch: [images.count, numbers]. place(position, numbers) gets the
// numbers of each image of this rank, also of images that the journal has. Returns false if the run
// must stop.
template <class T, class Make, class Place>
bool embed(const Context& context, const data::Dataset& set, const std::string& stage,
           int64_t passes, int64_t numbers, const Make& make, const Place& place) {
  auto& pass = context.pass_as<models::EmbedPass>();
  std::vector<T> all(size_t(context.batch * numbers));
  auto part = [&](int64_t i) {
    return std::span(all).subspan(size_t(i * numbers), size_t(numbers));
  };
  const Rounds rounds(
      context, set, stage,
      [&](int64_t position, std::string_view bytes) {
        copy_values(bytes, part(0));
        place(position, part(0));
      },
      passes);
  std::vector<float> features(size_t(context.batch * feature_count(context)));
  auto loader = rounds.loader(context, [](int64_t p) { return p; });
  for (int64_t round = 0; round < rounds.count(); ++round) {
    if (context.interrupted()) return false;
    data::BatchPtr batch = loader->next();
    const models::HostBatch host = data::host_batch(*batch, rounds.first(round));
    context.forward(host, [&](nn::Context& ctx, const models::Inputs& in) {
      pass.run(ctx, in, {features.data()});
    });
    const int64_t first = rounds.first(round);
    const int64_t count = std::clamp<int64_t>(rounds.examples() - first, 0, host.examples);
    make(Embedded{first, count, features.data(), host}, std::span(all));
    for (int64_t i = 0; i < count; ++i) {
      place(first + i, part(i));
      if (context.journal) context.journal->add(first + i, std::span<const T>(part(i)));
    }
    if (context.journal) context.journal->write();
  }
  return true;
}

// The features of all images in all passes over a set, and answers to each image. All ranks read
// all rows. The ranks of a node share one copy.
class FeatureTable {
 public:
  int64_t rows = 0, features = 0, answers = 0;

  FeatureTable() = default;
  // All ranks call.
  FeatureTable(const Context& context, int64_t rows, int64_t features, int64_t answers);
  const float* x() const { return x_; }  // [rows, features]
  const float* row(int64_t i) const { return x_ + i * features; }
  const float* answers_of(int64_t i) const { return x_ + rows * features + i * answers; }
  // Writes row i: [features + answers]. One rank writes each row.
  void write(int64_t i, const float* numbers) {
    put(i, numbers);
    written_[size_t(i)] = 1;
  }
  // Ends the writing. All ranks call, and have all rows afterwards.
  void share(comm::Comm& world);

 private:
  void put(int64_t i, const float* numbers);
  void exchange(comm::Comm& world);

  std::shared_ptr<comm::NodeBuffer> memory_;
  float* x_ = nullptr;
  std::vector<char> written_;  // rows that this rank wrote
};

// Returns the rows of a table whose answers are labels. The table must outlive them. The number of
// classes is the largest label + 1.
LabelledRows labelled_rows(const FeatureTable& table);

// Refuses features that are not finite: Error(Exit::nonfinite) with the first such image. A fit
// could ignore them and give a plausible number. All ranks call, with the same table.
void refuse_nonfinite(const Context& context, const data::Dataset& set, const FeatureTable& table);

// Refuses work on features that does not fit into the memory of this machine: Error(Exit::mesh).
// `keys` names further keys that reduce the memory: "eval.NAME.shots, ".
void need_feature_memory(const Context& context, const data::Dataset& set, const std::string& keys,
                         int64_t bytes);

}  // namespace eval
