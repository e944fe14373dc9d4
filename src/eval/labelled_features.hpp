// SPDX-License-Identifier: Apache-2.0
// Features of labelled images, for evaluators that fit something to one set and test it on another.
// All ranks embed the images together.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "data/stream/host_batch.hpp"
#include "eval/evaluator.hpp"
#include "eval/linear_probe.hpp"
#include "models/embedder.hpp"

namespace eval {

constexpr int64_t kMaxClasses = 1'000'000;

// Returns the pass that embeds images at one tap, "" for that of the vector which a head reads;
// null if the model turns no images into features.
std::unique_ptr<models::ForwardPass> make_tap_pass(const models::Model& model,
                                                   const std::string& tap);

// Returns what is wrong with a key's list of numbers: that it is empty, or has one twice.
template <class T>
std::string problem_of_list(const std::vector<T>& list) {
  if (list.empty()) return "names no number";
  for (const T& value : list)
    if (std::count(list.begin(), list.end(), value) > 1)
      return fmt::format("{} is there twice", value);
  return "";
}

// Returns the label of example i of the batch. Error(Exit::data) if it is not in [0, kMaxClasses).
int32_t label_of(const data::Dataset& set, const models::HostBatch& batch, int64_t i);

// Some images of a set with their features, without padding.
struct Embedded {
  int64_t first = 0, count = 0;     // positions [first, first + count)
  const float* features = nullptr;  // [count, width of the tap]
  const models::HostBatch& batch;
};

// Calls visit(embedded) for each batch of the set that this rank embeds. `visit` adds the examples
// to the journal, and `restore` gets the examples that the journal has. Returns false if the run
// must stop.
bool embed(const Context& context, const data::Dataset& set, const std::string& stage,
           const Journal::Take& restore, const std::function<void(const Embedded& images)>& visit);

// Returns the number of features of an image.
int64_t feature_count(const Context& context);

// The features of all images of a set, on every rank, and an answer to each image.
struct FeatureTable {
  int64_t rows = 0, features = 0, answers = 0;
  std::vector<float> x;       // [rows, features]
  std::vector<float> answer;  // [rows, answers]

  const float* row(int64_t i) const { return x.data() + i * features; }
};

// Returns the rows of a table whose answers are labels. The table must outlive them. There are as
// many classes as the largest label says.
LabelledRows labelled_rows(const FeatureTable& table);

// Writes the answers to example i of the batch: floats, as many as the table has of each image.
using AnswerOf = std::function<void(const data::Dataset& set, const models::HostBatch& batch,
                                    int64_t i, std::span<float> answers)>;
// The answer that is the label.
void answer_label(const data::Dataset& set, const models::HostBatch& batch, int64_t i,
                  std::span<float> answers);

// Embeds a set as the stage `stage` of the journal, and gives all ranks the table; the bits do not
// depend on the ranks. Returns false if the run must stop. `further_bytes`: the memory that the
// evaluator needs beside the table. Error(Exit::mesh) if this does not fit into the machine.
bool gather_features(const Context& context, const data::Dataset& set, const std::string& stage,
                     int64_t answers, const AnswerOf& answer_of, int64_t further_bytes,
                     FeatureTable& out);

// Refuses work on features that does not fit into the memory of this machine: Error(Exit::mesh).
// `keys` names further keys that make it smaller: "eval.NAME.shots, ".
void need_feature_memory(const Context& context, const data::Dataset& set, const std::string& keys,
                         int64_t bytes);

}  // namespace eval
