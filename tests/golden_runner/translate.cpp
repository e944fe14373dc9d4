// SPDX-License-Identifier: Apache-2.0
#include "translate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "keys.hpp"
#include "optim/adafactor.hpp"
#include "optim/adamw.hpp"
#include "optim/momentum.hpp"

namespace golden {
namespace {

using nlohmann::json;

const json& group(const CaseFile& file, const std::string& name) {
  static const json kEmpty = json::object();
  auto it = file.config().find(name);
  return it == file.config().end() ? kEmpty : *it;
}

std::shared_ptr<models::CappaOptions> translate_model(const CaseFile& file, bool training) {
  Keys k(file, group(file, "model"), "config: model");
  auto m = std::make_shared<models::CappaOptions>();
  // Defaults follow cappa.md 1.1. Zero in a decoder size means the encoder's size.
  m->encoder.depth = k.integer("num_layers", 6);
  m->encoder.heads = k.integer("num_heads", 8);
  m->encoder.mlp = k.integer("mlp_dim", 2048);
  m->encoder.width = k.integer("emb_dim", 512);
  m->decoder.depth = k.integer("decoder_num_layers", 0);
  if (m->decoder.depth == 0) m->decoder.depth = m->encoder.depth;
  m->decoder.heads = k.integer("decoder_num_heads", 0);
  m->decoder.mlp = k.integer("decoder_mlp_dim", 0);
  m->decoder.width = k.integer("decoder_emb_dim", 0);
  m->decoder.bias = k.flag("decoder_bias", true);
  m->vocab_size = k.integer("vocab_size", 32000);
  m->seq_len = k.integer("seq_len", 256);
  const std::string posemb = k.text("posemb_type", "learn");
  m->learned_positions = posemb == "learn";
  m->masked_pred_prob = k.number("masked_pred_prob", 0);
  m->masking_ratio = k.number("masking_ratio", 0);
  std::vector<double> patches = k.numbers("patches");
  if (patches.empty()) patches = {16, 16};
  if (patches.size() != 2) k.wrong("patches", "no pair of sizes");
  m->encoder.patch = int64_t(patches[0]);
  m->encoder.patch_width = int64_t(patches[1]);

  if (posemb != "learn" && posemb != "sincos2d")
    k.wrong("posemb_type", "neither \"learn\" nor \"sincos2d\"");
  for (const char* key : {"enc_dropout_rate", "dec_dropout_rate"})
    if (k.number(key, 0) != 0) k.wrong(key, "not 0: its draws are not recorded");
  if (k.flag("scan", false))
    k.wrong("scan", "not supported: parameters of all layers would be stacked");
  // These keys change nothing. The first two are declared and never used, and the third matters
  // with scan only (cappa.md 1.1, 1.9).
  k.find("patch_dropout");
  k.find("input_seq_len");
  k.find("remat_policy");
  k.done();

  auto positive = [&](const char* key, int64_t value) {
    if (value < 1) k.wrong(key, "not above 0");
  };
  positive("num_layers", m->encoder.depth);
  positive("num_heads", m->encoder.heads);
  positive("mlp_dim", m->encoder.mlp);
  positive("emb_dim", m->encoder.width);
  positive("vocab_size", m->vocab_size);
  positive("seq_len", m->seq_len);
  positive("patches", std::min(m->encoder.patch, m->encoder.patch_width));
  if (m->encoder.width % m->encoder.heads) k.wrong("num_heads", "no divisor of emb_dim");
  if (m->decoder_width() % m->decoder_heads())
    k.wrong("decoder_num_heads", "no divisor of the decoder's width");

  // Sets the sizes that the published code takes from its inputs. Training cases have a leading
  // axis over steps.
  size_t lead = training ? 1 : 0;
  // Without labels, texts have the length of the model.
  Shape image = file.shape("batch/image"), labels = file.has("batch/labels")
                                                        ? file.shape("batch/labels")
                                                        : Shape(2 + lead, m->seq_len);
  if (image.size() != 4 + lead || image.back() != 3)
    file.fail("batch/image", "has the shape " + text_of(image));
  if (labels.size() != 2 + lead) file.fail("batch/labels", "has the shape " + text_of(labels));
  m->image_height = image[lead + 1];
  m->image_width = image[lead + 2];
  m->text_len = labels[lead + 1];
  if (m->text_len < 1 || m->text_len > m->seq_len)
    file.fail("batch/labels", "longer than model.seq_len, or empty");
  if (m->image_height < m->encoder.patch || m->image_width < m->encoder.patch_width)
    file.fail("batch/image", "smaller than a patch");
  return m;
}

device::DType type_named(Keys& k, const std::string& key, const std::string& otherwise) {
  std::string name = k.text(key, otherwise);
  if (name == "bfloat16") return device::DType::bf16;
  if (name == "float32") return device::DType::f32;
  k.wrong(key, "neither \"float32\" nor \"bfloat16\"");
}

// Translates train.optax_name and train.optax.
void translate_method(const CaseFile& file, const std::string& name, const json& options,
                      optim::OptimizerOptions& out) {
  Keys k(file, options, "config: train.optax");
  if (name == "big_vision.scale_by_adafactor") {
    auto a = std::make_shared<optim::AdafactorOptions>();
    a->factor_min = k.integer("min_dim_size_to_factor", 32);
    a->beta2_decay = k.number("decay_rate", 0.8);
    a->decay_offset = k.integer("decay_offset", 0);
    a->beta2_cap = k.number("beta2_cap", 0.999);
    a->clipping_threshold = k.number("clipping_threshold", 0);
    a->momentum = k.given("momentum") ? k.number("momentum", 0) : 0.9;  // null: off
    a->momentum_type = type_named(k, "dtype_momentum", "bfloat16");
    a->eps = k.number("eps", 1e-30);
    k.find("momentum");
    out.kind = "adafactor";
    out.method = a;
  } else if (name == "scale_by_adam") {
    auto a = std::make_shared<optim::AdamwOptions>();
    a->b1 = k.number("b1", 0.9);
    a->b2 = k.number("b2", 0.999);
    a->eps = k.number("eps", 1e-8);
    a->eps_root = k.number("eps_root", 0);
    a->momentum_type = type_named(k, "mu_dtype", "float32");
    out.kind = "adamw";
    out.method = a;
  } else if (name == "big_vision.momentum_hp") {
    auto m = std::make_shared<optim::MomentumOptions>();
    m->momentum = k.number("momentum", 0.9);
    m->momentum_type = type_named(k, "dtype", "bfloat16");
    m->nesterov = k.flag("nesterov", false);
    out.kind = "momentum";
    out.method = m;
  } else if (name == "trace") {
    auto m = std::make_shared<optim::MomentumOptions>();
    if (!k.find("decay")) k.wrong("decay", "missing");
    m->momentum = k.number("decay", 0);
    m->momentum_type = type_named(k, "accumulator_dtype", "float32");
    m->nesterov = k.flag("nesterov", false);
    out.kind = "momentum";
    out.method = m;
  } else if (name == "big_vision.sgd" || name == "identity") {
    out.kind = "sgd";
  } else if (name == "scale") {
    if (!k.find("step_size")) k.wrong("step_size", "missing");
    out.kind = "sgd";
    out.learning_rate *= k.number("step_size", 1);
  } else {
    file.fail(
        "config: train.optax_name",
        fmt::format("unknown optimizer \"{}\"; known: big_vision.scale_by_adafactor, "
                    "scale_by_adam, big_vision.momentum_hp, trace, big_vision.sgd, identity, scale",
                    name));
  }
  k.done();
}

config::Duration duration(Keys& k, const std::string& prefix) {
  using Unit = config::Duration::Unit;
  config::Duration d;
  for (auto [suffix, unit] : {std::pair("_steps", Unit::steps),
                              {"_examples", Unit::examples},
                              {"_epochs", Unit::epochs},
                              {"_percent", Unit::fraction}})
    if (k.find(prefix + suffix)) {
      if (d.set()) k.wrong(prefix + suffix, "one of two or more lengths");
      d = {unit, k.number(prefix + suffix, 0)};
      if (d.value < 0 || (unit == Unit::fraction && d.value > 1))
        k.wrong(prefix + suffix, "out of range");
    }
  return d;
}

optim::ScheduleOptions translate_schedule(const CaseFile& file, const json& options,
                                          const std::string& path) {
  Keys k(file, options, path);
  optim::ScheduleOptions s;
  s.mult = k.number("mult", 1);
  s.scale_with_batch = k.flag("scale_with_batchsize", false);
  s.warmup = duration(k, "warmup");
  s.cooldown = duration(k, "cooldown");
  s.kind = k.text("decay_type", "stair");
  s.shape = nullptr;
  if (s.kind == "linear" || s.kind == "polynomial") {
    auto shape = s.kind == "linear" ? std::make_shared<optim::LinearShape>()
                                    : std::make_shared<optim::PolynomialShape>();
    shape->power = k.number("power", 1);
    shape->end = k.given("end") ? k.number("end", 0) : k.number("linear_end", 0);
    k.find("end");
    k.find("linear_end");
    s.shape = shape;
  } else if (s.kind == "rsqrt") {
    auto shape = std::make_shared<optim::RsqrtShape>();
    double timescale = k.number("timescale", 10000);
    if (!(timescale > 0) || timescale != std::floor(timescale))
      k.wrong("timescale", "no whole number of steps");
    shape->timescale = {config::Duration::Unit::steps, timescale};
    s.shape = shape;
  } else if (s.kind == "stair") {
    auto shape = std::make_shared<optim::StairShape>();
    shape->at_steps = k.numbers("steps");
    shape->mults = k.numbers("mults");
    if (shape->at_steps.size() != shape->mults.size()) k.wrong("mults", "not as long as steps");
    s.shape = shape;
  } else if (s.kind != "cosine") {
    k.wrong("decay_type", "unknown; known: linear, polynomial, cosine, rsqrt, stair");
  }
  k.done();
  return s;
}

// Reads [[regex, value], ...].
template <class Value, class Convert>
Patterns<Value> translate_patterns(const CaseFile& file, const json& list, const std::string& path,
                                   Convert convert) {
  Patterns<Value> out;
  if (!list.is_array()) file.fail(path, "is no list");
  for (const json& pair : list) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string())
      file.fail(path, pair.dump() + " is no [pattern, value]");
    auto text = pair[0].get<std::string>();
    if (text.starts_with("/"))
      file.fail(path, fmt::format("pattern \"{}\" begins with \"/\"; paths do not", text));
    try {
      out.entries.push_back({text, std::regex(text), convert(pair[1])});
    } catch (const std::regex_error&) {
      file.fail(path, fmt::format("\"{}\" is no pattern that is understood here", text));
    }
  }
  return out;
}

}  // namespace

void translate_training(const CaseFile& file, Case& c) {
  Keys k(file, group(file, "train"), "config: train");
  c.optimizer.learning_rate = k.number("lr", 0);
  if (!k.find("lr")) k.wrong("lr", "missing");
  c.optimizer.weight_decay = k.number("wd", 0);
  c.optimizer.clip_norm = k.number("grad_clip_norm", 0);
  const json none = json::object(), usual = json::array({json::array({".*/kernel$", 1.0})}),
             no_list = json::array();
  const json* options = k.find("optax");
  translate_method(file, k.text("optax_name", ""), options ? *options : none, c.optimizer);

  const json* schedule = k.find("schedule");
  if (!schedule && k.given("schedule")) k.wrong("schedule", "freezing everything");
  json all = json::array({json::array({".*", schedule ? *schedule : none})});
  const std::string path = "config: train.schedule";
  c.schedules = translate_patterns<std::optional<optim::ScheduleOptions>>(
      file, schedule && schedule->is_array() ? *schedule : all, path,
      [&](const json& s) -> std::optional<optim::ScheduleOptions> {
        if (s.is_null()) return std::nullopt;
        return translate_schedule(file, s, path);
      });
  auto number = [&](const std::string& where, double least) {
    return [&file, where, least](const json& v) {
      if (!v.is_number() || v.get<double>() < least)
        file.fail(where, v.dump() + " is no multiplier");
      return v.get<double>();
    };
  };
  const json *lr = k.find("lr_mults"), *wd = k.find("wd_mults");
  c.lr_mults = translate_patterns<double>(
      file, lr ? *lr : no_list, "config: train.lr_mults",
      number("config: train.lr_mults", std::numeric_limits<double>::min()));
  c.wd_mults = translate_patterns<double>(file, wd ? *wd : usual, "config: train.wd_mults",
                                          number("config: train.wd_mults", 0));
  // Accepts an absent key or the number of loss.label_smoothing.
  if (double s = k.number("label_smoothing", c.model->label_smoothing);
      s != c.model->label_smoothing)
    k.wrong("label_smoothing", "not what loss.label_smoothing says");
  k.done();
}

Case translate(const CaseFile& file) {
  Case c;
  Keys groups(file, file.config(), "config");
  for (const char* name : {"case", "loss", "model", "train"}) groups.find(name);
  groups.done();
  c.training = file.config().contains("train");
  if (c.training != file.has("steps"))
    file.fail("config", c.training ? "options of a training run, but no recorded steps"
                                   : "recorded steps, but no train options");

  Keys loss(file, group(file, "loss"), "config: loss");
  c.model = translate_model(file, c.training);
  c.model->label_smoothing = loss.number("label_smoothing", 0);
  c.model->pad_id = loss.integer("pad_token", 0);
  loss.done();
  Shape image = file.shape("batch/image");
  c.steps = c.training ? image[0] : 1;
  c.batch = image[c.training ? 1 : 0];

  Keys k(file, group(file, "case"), "config: case");
  c.name = k.text("name", file.path());
  if (!k.flag("train", true)) k.wrong("train", "not supported: results are those of train=True");
  if (k.integer("steps", c.steps) != c.steps)
    k.wrong("steps", fmt::format("not the {} batches of batch/image", c.steps));
  if (k.integer("batch_size", c.batch) != c.batch)
    k.wrong("batch_size", fmt::format("not the {} of batch/image", c.batch));
  c.clock = {c.steps, c.batch, k.integer("data_size", 0)};
  // Draws are recorded, so the runner needs no seeds.
  k.find("seed");
  k.find("rng_seed");
  k.find("dropout_rng_seed");
  k.done();
  if (c.batch < 1 || c.steps < 1) file.fail("batch/image", "is empty");
  if (c.training) translate_training(file, c);
  return c;
}

void Case::resolve(const std::vector<shard::Parameter>& parameters,
                   std::vector<optim::ParameterPolicy>& policies,
                   std::vector<optim::Schedule>& made) const {
  policies.assign(parameters.size(), {});
  made.clear();
  if (!training) {  // one step without effect, for its gradients
    made.emplace_back();
    return;
  }
  std::vector<int> place;  // index of each entry's schedule, -1: frozen
  for (const auto& e : schedules.entries) {
    place.push_back(e.value ? int(made.size()) : -1);
    if (e.value) made.push_back(e.value->make(clock, "train.schedule \"" + e.text + "\""));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& path = parameters[i].path;
    int s = schedules.find(path), lr = lr_mults.find(path), wd = wd_mults.find(path);
    if (s < 0) base::fail(base::Exit::config, "no pattern of train.schedule covers {}", path);
    optim::ParameterPolicy& p = policies[i];
    p.frozen = place[size_t(s)] < 0;
    p.schedule = std::max(place[size_t(s)], 0);
    p.lr_scale = lr < 0 ? 1 : lr_mults.entries[size_t(lr)].value;
    p.decay_scale = wd < 0 ? 0 : wd_mults.entries[size_t(wd)].value;
  }
  if (made.empty()) base::fail(base::Exit::config, "train.schedule freezes everything");
}

std::string published_state_name(const std::string& ours) {
  static const std::vector<std::pair<std::string, std::string>> names = {
      {"adafactor/v_row/", "0/0/1/"},    {"adafactor/v_col/", "0/0/2/"}, {"adafactor/v/", "0/0/3/"},
      {"adafactor/momentum/", "0/2/1/"}, {"adamw/mu/", "0/1/"},          {"adamw/nu/", "0/2/"},
      {"momentum/trace/", "0/0/"}};
  for (const auto& [prefix, place] : names)
    if (ours.starts_with(prefix)) return place + ours.substr(prefix.size());
  base::fail(base::Exit::internal, "the optimizer's state {} has no published name", ours);
}

bool unused_state(const std::string& optimizer, const std::string& place) {
  return optimizer == "adafactor" && (place.starts_with("0/0/1/") || place.starts_with("0/0/2/") ||
                                      place.starts_with("0/0/3/"));
}

}  // namespace golden
