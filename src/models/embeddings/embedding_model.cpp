// SPDX-License-Identifier: Apache-2.0
#include "models/embeddings/embedding_model.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "models/embeddings/cluster_embed_pass.hpp"
#include "models/embeddings/embedding_pass.hpp"
#include "models/trunks/embed_pass.hpp"

namespace models {

using device::DType;

EmbeddingModel::EmbeddingModel(const EmbeddingOptions& options, const MemoryOptions& memory,
                               const MakeParts& make_parts)
    : options_(options), network_(options, memory.recompute, list_) {
  for (size_t p = 0; p < list_.parameters().size(); ++p)
    if (list_.parameters()[p].kind == shard::ParameterKind::state)
      network_states_.push_back(int(p));
  parts_ = make_parts(network_, list_);
  if (parts_.student_views.empty()) {
    parts_.student_views.resize(size_t(options_.views.groups[0]));
    std::iota(parts_.student_views.begin(), parts_.student_views.end(), 0);
  }
  check_joins();
}

void EmbeddingModel::check_joins() const {
  const int64_t joins = network_.joins();
  if (joins == 1) return;
  if (parts_.teacher)
    base::fail(base::Exit::config,
               "model.head: a head joins views, but this kind compares them with single views of a "
               "teacher; leave that head out");
  if (views() % joins)
    base::fail(base::Exit::config,
               "model.head: towers = {} does not divide the {} views of an example; change it or "
               "model.views",
               joins, views());
}

FeatureSpec EmbeddingModel::single_image() const {
  const int64_t size = options_.views.image_size[0];
  return {.type = DType::f32,
          .shape = {size, size, 3},
          .key = "model.image_size",
          .pixels = true,
          .made_by = fmt::format("resize({})", size)};
}

std::map<std::string, FeatureSpec> EmbeddingModel::features() const {
  std::map<std::string, FeatureSpec> all;
  for (size_t g = 0; g < options_.views.groups.size(); ++g) {
    const int64_t size = options_.views.image_size[g];
    all[ViewOptions::field(g)] = {
        .type = DType::f32,
        .shape = {options_.views.groups[g], size, size, 3},
        .key = "model.views",
        .pixels = true,
        .made_by = parts_.made_by.empty() ? options_.views.ops() : parts_.made_by};
  }
  if (parts_.loss->uses_index())
    all["index"] = {.type = DType::i32,
                    .shape = {},
                    .key = "model.kind",
                    .below = parts_.loss->index_limit(),
                    .limit_key = "model.loss.samples"};
  if (const MadeLabel* label = parts_.loss->label())
    all[label->field] = {.type = DType::i32,
                         .shape = {},
                         .key = label->key,
                         .below = label->classes,
                         .limit_key = label->key,
                         .made_by = label->made_by};
  // A model of one view reads images as they are, without a dimension of views.
  if (options_.views.count() == 1) all["image"] = single_image();
  return all;
}

void EmbeddingModel::take_bytes(const kernels::PixelRange& range) {
  bytes_ = true;
  network_.trunk().take_bytes(range);
}

std::vector<Measure> EmbeddingModel::measures() const {
  std::vector<Measure> all = {{"loss", parts_.loss_unit, parts_.loss_doc, 0}};
  for (const LossTerm& term : parts_.loss->terms())
    all.push_back({term.name, term.unit, term.doc, int(all.size())});
  return all;
}

std::unique_ptr<TrainPass> EmbeddingModel::make_train_pass() const {
  return make_embedding_pass(*this);
}

std::optional<TeacherSpec> EmbeddingModel::teacher() const {
  if (!parts_.teacher) return {};
  return TeacherSpec{.blocks = network_.blocks(),
                     .keep = parts_.teacher->keep,
                     .own_states = parts_.teacher->own_states};
}

std::vector<Tap> EmbeddingModel::taps() const {
  const int64_t size = options_.views.image_size[0];
  std::vector<Tap> all = network_.trunk().taps(size, size);
  for (Tap& tap : cluster_taps(*this)) all.push_back(std::move(tap));
  return all;
}

std::unique_ptr<EmbedPass> EmbeddingModel::make_embed_pass(
    const std::vector<std::string>& taps) const {
  const int64_t size = options_.views.image_size[0];
  for (const Tap& tap : chosen_taps(this->taps(), taps))
    if (tap.whole) return make_cluster_embed_pass(*this, images(0, 1), size, taps);
  return make_trunk_embed_pass(network_.encoder(), images(0, 1), size, size, taps);
}

std::string EmbeddingModel::changing_arguments() const {
  return "the loss exchanges embeddings with all ranks within passes";
}

int64_t EmbeddingModel::forward_flops() const { return network_.forward_flops(groups(nullptr)); }

int64_t EmbeddingModel::input_flops() const {
  return network_.trunk().input_flops(groups(nullptr));
}

int64_t EmbeddingModel::train_flops() const {
  const int64_t own = Model::train_flops();
  if (!parts_.teacher) return own;
  const ImageGroup seen = teacher_group(nullptr);
  return own + network_.forward_flops({&seen, 1});
}

// ---------------------------------------------------------------- inputs

int64_t EmbeddingModel::views() const {
  return options_.views.count() - options_.views.groups[0] + int64_t(student_views().size());
}

int64_t EmbeddingModel::rows() const { return views() / network_.joins(); }

int64_t EmbeddingModel::teacher_views() const {
  return parts_.teacher ? int64_t(parts_.teacher->views.size()) : 0;
}

bool EmbeddingModel::teacher_has_images() const {
  return parts_.teacher && parts_.teacher->views != student_views();
}

bool EmbeddingModel::network_sees_all() const {
  return int64_t(student_views().size()) == options_.views.groups[0] &&
         std::ranges::is_sorted(student_views());
}

InputSpec EmbeddingModel::images(size_t group, int64_t views) const {
  const std::string field = ViewOptions::field(group);
  return {field, bytes_ ? DType::u8 : DType::f32, views * options_.views.pixels(group), field};
}

std::vector<InputSpec> EmbeddingModel::inputs() const {
  std::vector<InputSpec> specs = {images(0, int64_t(student_views().size()))};
  if (!network_sees_all()) specs[0].field.clear();
  for (size_t g = 1; g < options_.views.groups.size(); ++g)
    specs.push_back(images(g, options_.views.groups[g]));
  if (teacher_has_images()) {
    const InputSpec views = images(0, teacher_views());
    specs.push_back({"teacher_image", views.type, views.per_example});
  }
  if (parts_.loss->uses_index()) specs.push_back({"index", DType::i32, 1, "index"});
  if (const int64_t n = parts_.loss->negatives())
    specs.push_back({"negatives", DType::i32, outputs() * n});
  if (const MadeLabel* label = parts_.loss->label())
    specs.push_back({"labels", DType::i32, 1, label->field});
  return specs;
}

std::vector<ImageGroup> EmbeddingModel::groups(const Inputs* inputs) const {
  std::vector<ImageGroup> all;
  for (size_t g = 0; g < options_.views.groups.size(); ++g) {
    const int64_t size = options_.views.image_size[g];
    all.push_back({inputs ? inputs->at(ViewOptions::field(g)).device : View{},
                   g == 0 ? int64_t(student_views().size()) : options_.views.groups[g], size,
                   size});
  }
  return all;
}

ImageGroup EmbeddingModel::teacher_group(const Inputs* inputs) const {
  const int64_t size = options_.views.image_size[0];
  const char* name = teacher_has_images() ? "teacher_image" : "image";
  return {inputs ? inputs->at(name).device : View{}, teacher_views(), size, size};
}

// Copies these views of group 0 of every example.
void EmbeddingModel::copy_views(const HostBatch& batch, const std::vector<int64_t>& views,
                                const View& into) const {
  const View all = batch.features.at(ViewOptions::field(0));
  const int64_t count = options_.views.groups[0], pixels = options_.views.pixels(0);
  CHECK(all.type == into.type && all.count == batch.examples * count * pixels &&
            into.count == batch.examples * int64_t(views.size()) * pixels,
        "the views of {} examples do not fit their buffer", batch.examples);
  const int64_t bytes = pixels * device::size_of(all.type);
  char* to = static_cast<char*>(into.data);
  for (int64_t b = 0; b < batch.examples; ++b)
    for (const int64_t v : views) {
      std::memcpy(to, static_cast<const char*>(all.data) + (b * count + v) * bytes, size_t(bytes));
      to += bytes;
    }
}

void EmbeddingModel::prepare(const HostBatch& batch, base::Stream stream,
                             const Inputs& into) const {
  if (!network_sees_all()) copy_views(batch, student_views(), into.at("image").host);
  if (teacher_has_images()) copy_views(batch, parts_.teacher->views, into.at("teacher_image").host);
  prepare_places(batch, stream, into);
  check_labels(batch);
}

void EmbeddingModel::check_labels(const HostBatch& batch) const {
  const MadeLabel* label = parts_.loss->label();
  if (!label) return;
  const View given = batch.features.at(label->field);
  for (int64_t b = 0; b < batch.examples; ++b) {
    const int32_t number = given.i32()[b];
    if (number < 0 || number >= label->classes)
      base::fail(base::Exit::data,
                 "field '{}' of the example at position {} holds {}, which is not in [0, {}) ({}); "
                 "set the key to the number that {} has",
                 label->field, batch.first_position + b, number, label->classes, label->key,
                 label->made_by);
  }
}

// Checks the places of examples in their data set, and draws places of negatives.
void EmbeddingModel::prepare_places(const HostBatch& batch, base::Stream stream,
                                    const Inputs& into) const {
  const int64_t limit = parts_.loss->index_limit();
  if (parts_.loss->uses_index()) {
    const View place = batch.features.at("index");
    for (int64_t b = 0; b < batch.examples; ++b)
      if (place.i32()[b] < 0 || place.i32()[b] >= limit)
        base::fail(base::Exit::data,
                   "the example at position {} is number {} of its data set, and the memory has {} "
                   "rows (model.loss.samples); set it to the size of the data set",
                   batch.first_position + b, place.i32()[b], limit);
  }
  const int64_t count = outputs() * parts_.loss->negatives();
  if (count == 0) return;
  const base::Stream draws = stream.sub(base::stream_id("negatives"));
  for (int64_t b = 0; b < batch.examples; ++b) {
    const base::Stream own = draws.sub(uint64_t(batch.first_position + b));
    int32_t* to = into.at("negatives").host.i32() + b * count;
    for (int64_t k = 0; k < count; ++k) to[k] = int32_t(own.bits(uint64_t(k)) % uint64_t(limit));
  }
}

}  // namespace models
