// SPDX-License-Identifier: Apache-2.0
// --mode show: writes a batch as the model would see it, after all ops, to RUN/show.h5 and prints a
// line per example. tools/show_batch draws the file. Needs neither ranks nor the lock of the run
// directory.
//   /model/NAME      every input of the model, [n, ...]: image, labels, weights (0 = no loss),
//                    decoder_ids (the decoder's input; ids from attribute mask_id on are the mask
//                    token), causal (0 = predicted in parallel)
//   /fields/NAME     every field of the data that the model does not read
//   /examples        JSON text: position, data set, key, caption (labels as text), and one text per
//                    token of labels and decoder_ids

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/log.hpp"
#include "base/text.hpp"
#include "data/ops/tokenizer_of.hpp"
#include "data/stream/host_batch.hpp"
#include "io/files.hpp"
#include "io/h5.hpp"
#include "models/caption_scorer.hpp"
#include "modes/mode.hpp"
#include "train/job.hpp"

namespace modes {
using namespace train;
namespace {

using Json = nlohmann::json;

// Turns ids into text for people.
class Reader {
 public:
  Reader(std::shared_ptr<const data::Tokenizer> tokenizer, int64_t mask_id)
      : tokenizer_(std::move(tokenizer)), mask_id_(mask_id) {}

  std::string caption(const int32_t* ids, int64_t count) const {
    std::vector<int32_t> kept;
    for (int64_t i = 0; i < count; ++i)
      if (!special(ids[i])) kept.push_back(ids[i]);
    return decode(kept);
  }
  std::vector<std::string> pieces(const int32_t* ids, int64_t count) const {
    std::vector<std::string> out;
    for (int64_t i = 0; i < count; ++i) {
      std::string text = special(ids[i]) ? "" : decode({ids[i]});
      if (ids[i] >= mask_id_) text = "[mask]";
      if (tokenizer_ && tokenizer_->pad_id() == ids[i]) text = "<pad>";
      if (tokenizer_ && tokenizer_->end_id() == ids[i]) text = "</s>";
      // A word boundary alone has no text.
      if (text.empty()) text = special(ids[i]) ? fmt::format("#{}", ids[i]) : "␣";
      out.push_back(text);
    }
    return out;
  }

 private:
  bool special(int32_t id) const {
    return !tokenizer_ || id < 0 || id >= tokenizer_->vocab_size() || tokenizer_->pad_id() == id ||
           tokenizer_->end_id() == id;
  }
  std::string decode(const std::vector<int32_t>& ids) const {
    return ids.empty() ? "" : tokenizer_->decode(ids);
  }

  std::shared_ptr<const data::Tokenizer> tokenizer_;
  int64_t mask_id_;
};

void write(io::H5File& file, const std::string& name, const device::View& values,
           std::vector<int64_t> shape) {
  using device::DType;
  size_t count = size_t(values.count);
  switch (values.type) {
    case DType::f32:
      return file.create<float>(name, {values.f32(), count}, shape);
    case DType::i32:
      return file.create<int32_t>(name, {values.i32(), count}, shape);
    case DType::u8:
      return file.create<uint8_t>(name, {values.u8(), count}, shape);
    default:
      base::fail(base::Exit::internal, "{}: arrays of {} are not shown", name,
                 device::name_of(values.type));
  }
}

// The examples to show: the examples of one training step, or the first ones of a data set in its
// own order, as evaluators read them.
struct Shown {
  std::unique_ptr<data::Dataset> set;  // null: training
  std::unique_ptr<data::Mixture> alone;
  const data::Mixture* stream = nullptr;
  int64_t first = 0, count = 0;  // positions
  bool training() const { return !set; }
};

Shown choose(Job& job) {
  const Recipe& recipe = job.recipe();
  Shown shown;
  if (recipe.show.data.empty()) {
    job.open_data();
    shown.stream = &job.data();
    shown.first = (recipe.show.step - 1) * recipe.train.global_batch;
  } else {
    shown.set = job.open_set(recipe.show.data);
    if (shown.set->size() < 1)
      base::fail(base::Exit::data, "[data.{}] holds no sample", shown.set->name());
    const data::Order as_they_lie(data::Shuffle::none, shown.set->size(),
                                  uint64_t(recipe.run.seed));
    shown.alone = std::make_unique<data::Mixture>(*shown.set, as_they_lie);
    shown.stream = shown.alone.get();
  }
  const int64_t most = shown.training() ? recipe.train.global_batch : shown.stream->size();
  shown.count = std::min(recipe.show.examples, most);
  return shown;
}

data::BatchPtr load(const Recipe& recipe, const Shown& shown) {
  data::LoaderOptions options = recipe.data.loader;
  options.log = std::make_shared<data::BadSampleLog>();
  auto positions = [first = shown.first, n = shown.count](int64_t) {
    std::vector<int64_t> out(static_cast<size_t>(n));
    std::iota(out.begin(), out.end(), first);
    return out;
  };
  data::Loader loader(*shown.stream, options, {.positions = positions, .first = 0, .end = 1});
  data::BatchPtr batch = loader.next();
  for (const data::BadSample& bad : options.log->found)
    base::log::warning("replaced: data.{}: {}: {}", bad.dataset, bad.key, bad.why);
  return batch;
}

// The model's inputs for a batch: prepared as in training with the random draws of that step, or as
// for evaluators.
class Prepared {
 public:
  Prepared(const Recipe& recipe, const models::Model& model, const Shown& shown,
           const data::Batch& batch) {
    const std::unique_ptr<models::TrainPass> train_pass = model.make_train_pass();
    const auto* scorer = dynamic_cast<const models::CaptionScorer*>(&model);
    const std::unique_ptr<models::ScorePass> score_pass =
        shown.training() || !scorer ? nullptr : scorer->make_score_pass();
    for (const models::InputSpec& spec : score_pass ? score_pass->inputs() : train_pass->inputs()) {
      std::vector<int64_t> shape{shown.count};
      if (spec.per_example > 1) shape.push_back(spec.per_example);
      arrays_[spec.name] =
          spec.field.empty() ? data::Array(spec.type, shape) : batch.array(spec.field);
      into_[spec.name] = arrays_[spec.name].view();
    }
    const models::HostBatch host = data::host_batch(batch, shown.first);
    if (score_pass)
      score_pass->prepare(host, into_);
    else
      train_pass->prepare(host, step::draws_of_step(recipe.run.seed, recipe.show.step), into_);
  }

  const std::map<std::string, data::Array>& arrays() const { return arrays_; }
  // Returns the integers that the model reads for this example, by input: classes, flags.
  std::map<std::string, int32_t> numbers(int64_t example, int64_t examples) const {
    std::map<std::string, int32_t> out;
    for (const auto& [name, input] : into_)
      if (input.host.type == device::DType::i32 && input.host.count == examples)
        out[name] = input.host.i32()[example];
    return out;
  }
  // Returns the ids of all examples; null if the model has no such input.
  const device::View* ids(const std::string& input) const {
    auto found = into_.find(input);
    return found == into_.end() ? nullptr : &found->second.host;
  }

 private:
  std::map<std::string, data::Array> arrays_;
  models::Inputs into_;
};

Json describe(const Job& job, const Shown& shown, const data::Batch& batch,
              const Prepared& prepared, int64_t mask_id) {
  Json listed = Json::array();
  for (int64_t i = 0; i < shown.count; ++i) {
    const data::Dataset& dataset = shown.stream->dataset(batch.parts[size_t(i)]);
    std::string name =
        data::tokenizer_of(job.recipe().data.preprocess_of(dataset.name()), "labels");
    Reader reader(name.empty() ? nullptr : job.tokenizers().get(name), mask_id);
    const int64_t position = shown.first + i;
    Json example = {{"position", position},
                    {"data", dataset.name()},
                    {"key", dataset.key(batch.indices[size_t(i)])}};
    for (const std::string input : {"labels", "decoder_ids"})
      if (const device::View* ids = prepared.ids(input)) {
        int64_t length = ids->count / shown.count;
        const int32_t* row = ids->i32() + i * length;
        if (input == "labels") example["caption"] = reader.caption(row, length);
        example[input] = reader.pieces(row, length);
      }
    std::string shows;
    if (example.contains("caption"))
      shows = fmt::format(" caption={}", base::quoted(example["caption"].get<std::string>(), 1000));
    for (const auto& [input, number] : prepared.numbers(i, shown.count)) {
      example[input] = number;
      shows += fmt::format(" {}={}", input, number);
    }
    base::log::line("position={} key={}{}", position, example["key"].get<std::string>(), shows);
    listed.push_back(std::move(example));
  }
  return listed;
}

void write_all(const std::string& path, const Recipe& recipe, const Shown& shown,
               const data::Batch& batch, const Prepared& prepared, const Json& listed,
               int64_t mask_id) {
  const std::string text = listed.dump(-1, ' ', false, Json::error_handler_t::replace);
  io::H5File file = io::H5File::create(path);
  for (const auto& [name, array] : prepared.arrays())
    write(file, "/model/" + name, array.view(), array.shape);
  for (const auto& [name, array] : batch.arrays)
    if (!prepared.arrays().contains(name))
      write(file, "/fields/" + name, array.view(), array.shape);
  file.set_attribute("/", "data", shown.stream->name());
  file.set_attribute("/", "preprocess", recipe.data.preprocess_of(shown.stream->dataset(0).name()));
  file.set_attribute("/", "step", shown.training() ? recipe.show.step : int64_t{0});
  file.set_attribute("/", "mask_id", mask_id);
  int64_t offset = file.create_contiguous_text("/examples", int64_t(text.size()));
  file.close();
  io::File(path, io::File::Mode::write).write_at(text.data(), int64_t(text.size()), offset);
}

int run_show(Call& call) {
  const Recipe& recipe = call.recipe;
  Job job(recipe, call.deck, nullptr, "", {});
  const Shown shown = choose(job);
  const data::BatchPtr batch = load(recipe, shown);
  const std::shared_ptr<const models::Model> model = recipe.made_model();
  const Prepared prepared(recipe, *model, shown, *batch);
  // The id after the last label is the mask token.
  const std::map<std::string, models::FeatureSpec> features = model->features();
  const int64_t mask_id = features.contains("labels") ? features.at("labels").below : 0;
  const Json listed = describe(job, shown, *batch, prepared, mask_id);
  io::make_directories(recipe.run.dir);
  const std::string path = recipe.run.dir + "/show.h5";
  write_all(path, recipe, shown, *batch, prepared, listed, mask_id);
  base::log::line("show     {} examples of {}{} in {}", shown.count, shown.stream->name(),
                  shown.training() ? fmt::format(" at step {}", recipe.show.step) : "", path);
  return 0;
}

}  // namespace

Mode show_row() {
  return {.name = "show", .doc = "a batch as the model sees it, to DIR/show.h5", .run = run_show};
}

}  // namespace modes
