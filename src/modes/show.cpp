#include "modes/show.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/log.hpp"
#include "base/text.hpp"
#include "data/host_batch.hpp"
#include "data/tokenizer_of.hpp"
#include "io/files.hpp"
#include "io/h5.hpp"
#include "models/caption_scorer.hpp"
#include "train/engine.hpp"
#include "train/input.hpp"

namespace modes {
using namespace train;
namespace {

using Json = nlohmann::json;

// Ids as text, for people.
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
      // A lone word boundary has no text of its own.
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
  std::string decode(const std::vector<int32_t>& ids) const { return ids.empty() ? "" : tokenizer_->decode(ids); }

  std::shared_ptr<const data::Tokenizer> tokenizer_;
  int64_t mask_id_;
};

void write(io::H5File& file, const std::string& name, const device::View& values, std::vector<int64_t> shape) {
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
      base::fail(base::Exit::internal, "{}: arrays of {} are not shown", name, device::name_of(values.type));
  }
}

}  // namespace

void show_batch(const Recipe& recipe) {
  const bool training = recipe.show.data.empty();
  data::Tokenizers tokenizers = recipe.data.tokenizers();
  data::OpenContext context{.seed = uint64_t(recipe.run.seed),
                            .threads = int(recipe.data.loader.threads),
                            .index_dir = recipe.data.loader.index_dir,
                            .run_index_dir = recipe.run.dir + "/index",
                            .substitutes = recipe.data.loader.substitutes()};
  // The examples of one step of training, or the first ones of a data set in its own order, as evaluators read them.
  std::unique_ptr<data::Dataset> evaluated;
  std::unique_ptr<data::Mixture> mixture;
  if (training) {
    mixture = open_training_data(recipe, tokenizers, context);
  } else {
    evaluated = data::open_dataset(recipe.data, tokenizers, recipe.show.data, context);
    if (evaluated->size() < 1) base::fail(base::Exit::data, "[data.{}] holds no sample", evaluated->name());
    mixture = std::make_unique<data::Mixture>(
        *evaluated, data::Order(data::Shuffle::none, evaluated->size(), uint64_t(recipe.run.seed)));
  }
  const int64_t first = training ? (recipe.show.step - 1) * recipe.train.global_batch : 0;
  const int64_t n = std::min(recipe.show.examples, training ? recipe.train.global_batch : mixture->size());
  data::LoaderOptions options = recipe.data.loader;
  options.log = std::make_shared<data::BadSampleLog>();
  data::LoaderPlan plan{.positions =
                            [first, n](int64_t) {
                              std::vector<int64_t> positions(static_cast<size_t>(n));
                              std::iota(positions.begin(), positions.end(), first);
                              return positions;
                            },
                        .first = 0,
                        .end = 1};
  data::Loader loader(*mixture, options, plan);
  data::BatchPtr batch = loader.next();
  for (const data::BadSample& bad : options.log->found)
    base::log::warning("replaced: data.{}: {}: {}", bad.dataset, bad.key, bad.why);
  const std::map<std::string, data::Array>& fields = batch->arrays;

  // The model's own preparation, with the draws of that step.
  std::unique_ptr<models::Model> model = models::make_model(recipe.model, recipe.memory);
  const std::unique_ptr<models::TrainPass> train_pass = model->make_train_pass();
  const auto* scorer = dynamic_cast<const models::CaptionScorer*>(model.get());
  const std::unique_ptr<models::ScorePass> score_pass = training || !scorer ? nullptr : scorer->make_score_pass();
  std::map<std::string, data::Array> inputs;
  models::Inputs into;
  for (const models::InputSpec& spec : score_pass ? score_pass->inputs() : train_pass->inputs()) {
    std::vector<int64_t> shape{n};
    if (auto known = fields.find(spec.name); known != fields.end())
      shape = known->second.shape;
    else if (spec.per_example > 1)
      shape.push_back(spec.per_example);
    inputs[spec.name].reset(spec.type, shape);
    into[spec.name] = inputs[spec.name].view();
  }
  const models::HostBatch host = data::host_batch(*batch, first);
  if (score_pass)
    score_pass->prepare(host, into);
  else
    train_pass->prepare(host, draws_of_step(recipe.run.seed, recipe.show.step), into);

  // The id after the last label is the mask token.
  const std::map<std::string, models::FeatureSpec> features = model->features();
  const int64_t mask_id = features.contains("labels") ? features.at("labels").below : 0;
  Json listed = Json::array();
  for (int64_t i = 0; i < n; ++i) {
    const data::Dataset& dataset = mixture->dataset(batch->parts[size_t(i)]);
    std::string name = data::tokenizer_of(recipe.data.preprocess_of(dataset.name()), "labels");
    Reader reader(name.empty() ? nullptr : tokenizers.get(name), mask_id);
    Json example = {{"position", first + i}, {"data", dataset.name()}, {"key", dataset.key(batch->indices[size_t(i)])}};
    for (const char* input : {"labels", "decoder_ids"})
      if (auto ids = into.find(input); ids != into.end()) {
        int64_t length = ids->second.host.count / n;
        const int32_t* row = ids->second.host.i32() + i * length;
        if (std::string_view(input) == "labels") example["caption"] = reader.caption(row, length);
        example[input] = reader.pieces(row, length);
      }
    base::log::line("position={} key={} caption={}", first + i, example["key"].get<std::string>(),
                    base::quoted(example.value("caption", ""), 1000));
    listed.push_back(std::move(example));
  }

  io::make_directories(recipe.run.dir);
  std::string path = recipe.run.dir + "/show.h5", text = listed.dump(-1, ' ', false, Json::error_handler_t::replace);
  io::H5File file = io::H5File::create(path);
  for (const auto& [name, array] : inputs) write(file, "/model/" + name, array.view(), array.shape);
  for (const auto& [name, array] : fields)
    if (!inputs.contains(name)) write(file, "/fields/" + name, array.view(), array.shape);
  file.set_attribute("/", "data", mixture->name());
  file.set_attribute("/", "preprocess", recipe.data.preprocess_of(mixture->dataset(0).name()));
  file.set_attribute("/", "step", training ? recipe.show.step : int64_t{0});
  file.set_attribute("/", "mask_id", mask_id);
  int64_t offset = file.create_contiguous_text("/examples", int64_t(text.size()));
  file.close();
  io::File(path, io::File::Mode::write).write_at(text.data(), int64_t(text.size()), offset);
  base::log::line("show     {} examples of {}{} in {}", n, mixture->name(),
                  training ? fmt::format(" at step {}", recipe.show.step) : "", path);
}

}  // namespace modes
