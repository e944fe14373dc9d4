#include "train/show.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "data/loader.hpp"
#include "data/tokenizer_of.hpp"
#include "io/files.hpp"
#include "io/h5.hpp"
#include "train/engine.hpp"

namespace train {
namespace {

using Json = nlohmann::json;

// The examples of one step of training, or the first ones of a data set in its own order, as evaluators read them.
class Examples {
 public:
  explicit Examples(const Recipe& recipe) : tokenizers(recipe.data.tokenizers()), training_(recipe.show.data.empty()) {
    data::OpenContext context{.seed = uint64_t(recipe.run.seed),
                              .threads = int(recipe.data.loader.threads),
                              .index_dir = recipe.data.loader.index_dir,
                              .run_index_dir = recipe.run.dir + "/index"};
    dataset_ = data::open_dataset(recipe.data, tokenizers, training_ ? recipe.train.data : recipe.show.data, context);
    if (dataset_->size() < 1) base::fail(base::Exit::data, "[data.{}] holds no sample", dataset_->name());
    order_ = data::Order(data::shuffle_named(training_ ? recipe.train.shuffle : "none"), dataset_->size(),
                         uint64_t(recipe.run.seed));
    first = training_ ? (recipe.show.step - 1) * recipe.train.global_batch : 0;
    count = std::min(recipe.show.examples, training_ ? recipe.train.global_batch : dataset_->size());
  }
  bool training() const { return training_; }
  const data::Spec& spec() const { return dataset_->spec(); }
  const data::Dataset& dataset(int64_t) const { return *dataset_; }
  data::Sample get(int64_t position) const { return dataset_->get(order_.index(position), position); }
  std::string key(int64_t position) const { return dataset_->key(order_.index(position)); }

  data::Tokenizers tokenizers;
  int64_t first = 0, count = 0;  // positions

 private:
  bool training_;
  std::unique_ptr<data::Dataset> dataset_;
  data::Order order_;
};

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

void ShowOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.key("data", data, "whose examples: \"\" = the training stream at `step`; a [data.NAME] = its first, unshuffled")
      .on_resume(may);
  t.key("step", step, "step of training whose batch is shown").min(1).on_resume(may);
  t.key("examples", examples, "how many of it").min(1).max(4096).unit("examples").on_resume(may);
}

void show_batch(const Recipe& recipe) {
  Examples examples(recipe);
  const int64_t n = examples.count;
  data::check_batchable(examples.spec());
  std::map<std::string, data::Array> fields;
  for (const auto& [field, known] : examples.spec()) {
    std::vector<int64_t> shape{n};
    shape.insert(shape.end(), known.shape.begin(), known.shape.end());
    fields[field].reset(known.type, std::move(shape));
  }
  for (int64_t i = 0; i < n; ++i) {
    data::Sample sample = examples.get(examples.first + i);
    for (auto& [field, array] : fields) {
      const data::Bytes& from = std::get<data::Array>(sample.at(field)).bytes;
      std::memcpy(array.bytes.data() + size_t(i) * from.size(), from.data(), from.size());
    }
  }

  // The model's own preparation, with the draws of that step.
  std::unique_ptr<models::Model> model = models::make_model(recipe.model, recipe.loss(), recipe.memory);
  models::HostBatch host{.features = {}, .examples = n, .first_position = examples.first};
  for (const auto& [field, array] : fields) host.features[field] = array.view();
  std::map<std::string, data::Array> inputs;
  models::Inputs into;
  for (const models::InputSpec& spec : model->inputs()) {
    std::vector<int64_t> shape{n};
    if (auto known = fields.find(spec.name); known != fields.end())
      shape = known->second.shape;
    else if (spec.per_example > 1)
      shape.push_back(spec.per_example);
    inputs[spec.name].reset(spec.type, shape);
    into[spec.name] = inputs[spec.name].view();
  }
  model->prepare(host, examples.training(), draws_of_step(recipe.run.seed, recipe.show.step), nullptr, into);

  Json listed = Json::array();
  for (int64_t i = 0; i < n; ++i) {
    const data::Dataset& dataset = examples.dataset(examples.first + i);
    std::string name = data::tokenizer_of(recipe.data.preprocess_of(dataset.name()), "labels");
    Reader reader(name.empty() ? nullptr : examples.tokenizers.get(name), model->label_limit());
    Json example = {
        {"position", examples.first + i}, {"data", dataset.name()}, {"key", examples.key(examples.first + i)}};
    for (const char* input : {"labels", "decoder_ids"})
      if (auto ids = into.find(input); ids != into.end()) {
        int64_t length = ids->second.count / n;
        const int32_t* row = ids->second.i32() + i * length;
        if (std::string_view(input) == "labels") example["caption"] = reader.caption(row, length);
        example[input] = reader.pieces(row, length);
      }
    base::log::line("position={} key={} caption={:?}", examples.first + i, example["key"].get<std::string>(),
                    example.value("caption", ""));
    listed.push_back(std::move(example));
  }

  io::make_directories(recipe.run.dir);
  std::string path = recipe.run.dir + "/show.h5", text = listed.dump(-1, ' ', false, Json::error_handler_t::replace);
  io::H5File file = io::H5File::create(path);
  for (const auto& [name, array] : inputs) write(file, "/model/" + name, array.view(), array.shape);
  for (const auto& [name, array] : fields)
    if (!inputs.contains(name)) write(file, "/fields/" + name, array.view(), array.shape);
  file.set_attribute("/", "data", examples.dataset(examples.first).name());
  file.set_attribute("/", "preprocess", recipe.data.preprocess_of(examples.dataset(examples.first).name()));
  file.set_attribute("/", "step", examples.training() ? recipe.show.step : int64_t{0});
  file.set_attribute("/", "mask_id", model->label_limit());
  int64_t offset = file.create_contiguous_text("/examples", int64_t(text.size()));
  file.close();
  io::File(path, io::File::Mode::write).write_at(text.data(), int64_t(text.size()), offset);
  base::log::line("show     {} examples of {}{} in {}", n, examples.dataset(examples.first).name(),
                  examples.training() ? fmt::format(" at step {}", recipe.show.step) : "", path);
}

}  // namespace train
