// SPDX-License-Identifier: Apache-2.0
#include "ssl_recipe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "keys.hpp"
#include "models/embeddings/embedding_model.hpp"
#include "models/trunks/convolutional/resnet.hpp"
#include "optim/registry.hpp"
#include "ssl_schedules.hpp"

namespace golden {
namespace {

using nlohmann::json;

std::string list_of(const std::vector<int64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string escaped(const std::string& path) {
  return std::regex_replace(path, std::regex(R"([.])"), R"(\.)");
}

// Writes a published option, if present, as a line of a deck with our name of the key.
struct Renamed {
  const json& from;
  std::string operator()(const char* theirs, const char* ours) const {
    const auto found = from.find(theirs);
    return found == from.end() || found->is_null() ? ""
                                                   : fmt::format("{} = {}\n", ours, found->dump());
  }
};

std::string norm_text(const json& options) {
  const Renamed renamed{options};
  std::string text =
      fmt::format("[model.head.batch_norm]\non = {}\n", options.value("use_bn", false));
  return text + renamed("batchnorm_eps", "eps") + renamed("batchnorm_momentum", "momentum");
}

// Converts a name of the published program's model to the form that names of sets have.
std::string plain_name(const std::string& name) {
  const std::string rest = name.substr(name.find('.') + 1);  // without "module."
  return std::regex_replace(rest, std::regex("_feature_blocks[.]"), "");
}

// Returns the kind of model that trains with a published loss.
std::string kind_of(const CaseFile& file, const std::string& loss) {
  static const std::map<std::string, std::string> kinds = {
      {"simclr_info_nce_loss", "simclr"},
      {"multicrop_simclr_info_nce_loss", "simclr"},
      {"barlow_twins_loss", "barlow_twins"},
      {"moco_loss", "moco"},
      {"swav_loss", "swav"},
      {"dino_loss", "dino"}};
  const auto found = kinds.find(loss);
  if (found == kinds.end()) file.fail("config", "there is no loss " + loss);
  return found->second;
}

struct Deck {
  models::ModelOptions model;
  optim::OptimizerOptions optimizer;
  optim::ScheduleTables schedule;
  void bind(config::Table& t) {
    t.table("model", model, "");
    t.table("optimizer", optimizer, "");
    t.named("schedule", schedule, "");
  }
};

}  // namespace

SslRecipe::SslRecipe(const CaseFile& file) : file_(file), config_(file.config()) {
  try {
    kind_ = kind_of(file, config_.at("loss_cfg").at("name").get<std::string>());
    steps = config_.at("steps").get<int64_t>();
    batch = config_.at("batch").get<int64_t>();
    sizes = config_.at("sizes").get<std::vector<int64_t>>();
    for (const int64_t step : config_.at("snap").get<std::vector<int64_t>>())
      snapshots.insert(step);
    for (size_t v = 0; v < sizes.size(); ++v) {
      if (v == 0 || sizes[v] != sizes[v - 1]) groups.push_back(0);
      ++groups.back();
    }
    const json& rate = config_.at("optim").at("param_schedulers").at("lr");
    // The recorded loop has one epoch, so rates that change at its start are those of the first
    // step.
    deck_ = model_text() + optimizer_text() + rules_text() +
            "[schedule.default]\nkind = 'phases'\n" + Renamed{rate}("update_interval", "update") +
            phases_text(rate);
  } catch (const json::exception& e) {
    file.fail("config", e.what());
  }
  step::EngineOptions options;
  // Parameters that a model freezes need a rule as well.
  for (const shard::Parameter& p : fill(options)->parameters())
    if (p.kind == shard::ParameterKind::frozen)
      deck_ += fmt::format("[[optimizer.rule]]\nmatch = '{}'\nfrozen = true\n", escaped(p.path));
}

std::string SslRecipe::head_text(const json& head) const {
  const auto name = head.at(0).get<std::string>();
  const json& options = head.at(1);
  const Renamed renamed{options};
  std::string text = "[[model.head]]\n";
  auto layers = [&] {
    const auto dims = options.at("dims").get<std::vector<int64_t>>();
    return "layers = " + list_of({dims.begin() + 1, dims.end()}) + "\n";
  };
  if (name == "mlp") {
    text += "kind = 'mlp'\n" + layers() + renamed("use_bias", "bias") +
            renamed("use_relu", "relu") + renamed("skip_last_layer_relu_bn", "bare_last");
  } else if (name == "swav_head") {
    text += "kind = 'swav'\n" + layers() + renamed("num_clusters", "prototypes") +
            renamed("skip_last_bn", "bare_last") + renamed("normalize_feats", "normalize");
    if (options.contains("activation_name"))
      text += fmt::format("activation = '{}'\n",
                          options["activation_name"] == "ReLU" ? "relu" : "gelu");
  } else if (name == "dino_head") {
    text +=
        fmt::format("kind = 'dino'\nprototypes = {}\n", options.at("num_clusters").at(0).dump());
    text += renamed("num_layers", "layers") + renamed("hidden_dim", "hidden") +
            renamed("bottleneck_dim", "bottleneck") +
            renamed("normalize_last_layer", "normalize_last_layer");
  } else {
    file_.fail("config", "there is no head " + name);
  }
  return text + norm_text(options);
}

std::string SslRecipe::loss_text() const {
  const json& loss = config_.at("loss_cfg");
  const Renamed renamed{loss};
  std::string text = "[model.loss]\n";
  if (kind_ == "simclr") return text + renamed("temperature", "temperature");
  if (kind_ == "barlow_twins")
    return text + renamed("lambda_", "lambda") + renamed("scale_loss", "scale");
  if (kind_ == "moco")
    return text + renamed("temperature", "temperature") + renamed("queue_size", "queue_size");
  if (kind_ == "dino")
    return text + renamed("student_temp", "student_temperature") +
           renamed("teacher_temp_min", "teacher_temperature_start") +
           renamed("teacher_temp_max", "teacher_temperature") +
           renamed("teacher_temp_warmup_iters", "teacher_temperature_warmup_steps") +
           renamed("crops_for_teacher", "teacher_views") + renamed("ema_center", "center_momentum");
  text += renamed("temperature", "temperature") + renamed("epsilon", "epsilon") +
          renamed("num_iters", "sinkhorn_iterations") +
          renamed("temp_hard_assignment_iters", "hard_assignment_steps") +
          renamed("crops_for_assign", "assign_views") +
          renamed("use_double_precision", "double_precision");
  const Renamed queue{loss.at("queue")};
  // The published length is rounded down to whole batches.
  const auto length = loss.at("queue").value("queue_length", int64_t(0)) / batch * batch;
  return text + fmt::format("queue_length = {}\n", length) +
         queue("start_iter", "queue_start_steps");
}

std::string SslRecipe::model_text() const {
  std::vector<int64_t> group_sizes;
  for (size_t v = 0, g = 0; g < groups.size(); v += size_t(groups[g++]))
    group_sizes.push_back(sizes[v]);
  std::string text = fmt::format("[model]\nkind = '{}'\nviews = {}\nimage_size = {}\n", kind_,
                                 list_of(groups), list_of(group_sizes));
  const json& loss = config_.at("loss_cfg");
  if (kind_ == "moco" || kind_ == "dino") text += Renamed{loss}("momentum", "momentum");
  text += fmt::format("[model.trunk]\nkind = 'resnet'\ndepth = {}\nwidth = {}\n",
                      config_.value("depth", 18), config_.at("width").dump());
  text += loss_text();
  for (const json& head : config_.at("heads")) text += head_text(head);
  return text;
}

std::string SslRecipe::optimizer_text() const {
  const json& o = config_.at("optim");
  const Renamed renamed{o};
  const auto name = o.at("name").get<std::string>();
  std::string text = "[optimizer]\nlearning_rate = 1\nweight_decay = 1\n";
  if (name == "adamw" || name == "adam") {
    text += fmt::format("kind = 'adamw'\ncorrection = 'f64'\ndecay_form = '{}'\n",
                        name == "adamw" ? "rate" : "gradient");
    if (o.contains("betas"))
      text += fmt::format("b1 = {}\nb2 = {}\n", o["betas"][0].dump(), o["betas"][1].dump());
    return text + renamed("eps", "eps") + renamed("amsgrad", "amsgrad");
  }
  if (name != "sgd" && name != "lars") file_.fail("config", "there is no optimizer " + name);
  text += "kind = 'sgd'\ndecay_form = 'gradient'\n" + renamed("momentum", "momentum") +
          renamed("dampening", "dampening") + renamed("nesterov", "nesterov");
  if (name == "lars")
    return text + "[optimizer.trust]\nrule = 'lars'\n" + renamed("eta", "coefficient") +
           renamed("exclude_bias_and_norm", "exclude_vectors");
  if (!o.value("use_larc", false)) return text;
  const Renamed larc{o.at("larc_config")};
  return text + "[optimizer.trust]\nrule = 'larc'\n" + larc("trust_coefficient", "coefficient") +
         larc("clip", "clip") + larc("eps", "eps");
}

// Each parameter has a rule of its own, with its group's decay and the steps in which it is frozen.
std::string SslRecipe::rules_text() const {
  std::map<std::string, int64_t> frozen;
  if (config_.contains("frozen"))
    for (const json& one : config_["frozen"]) {
      const auto name = one.at(0).get<std::string>();
      frozen[plain_name(name)] = one.at(1).get<int64_t>();
    }
  std::string text;
  for (const auto& [group, names] : config_.at("groups").items()) {
    std::istringstream all(names.get<std::string>());
    for (std::string name; all >> name;) {
      text += fmt::format("[[optimizer.rule]]\nmatch = '{}'\ndecay_scale = {}\n",
                          escaped(path_of(name)),
                          config_.at("group_decay").at(std::stoul(group)).dump());
      if (frozen.contains(name)) text += fmt::format("frozen_until_steps = {}\n", frozen[name]);
    }
  }
  return text;
}

std::shared_ptr<models::Model> SslRecipe::fill(step::EngineOptions& options,
                                               const models::MemoryOptions& memory) const {
  Deck deck;
  config::Deck(config::DeckSource{file_.path() + " as a deck", deck_, {}}, deck).throw_if_any();
  if (config_.contains("layers")) {
    auto& own = dynamic_cast<models::EmbeddingOptions&>(*deck.model.options);
    auto& trunk = dynamic_cast<models::ResnetTrunkOptions&>(*own.trunk.options);
    for (size_t s = 0; s < 4; ++s) trunk.config.blocks[s] = config_["layers"].at(s);
  } else {
    // Recorded runs without "layers" have one block in each stage.
    auto& own = dynamic_cast<models::EmbeddingOptions&>(*deck.model.options);
    dynamic_cast<models::ResnetTrunkOptions&>(*own.trunk.options).config.blocks = {1, 1, 1, 1};
  }
  std::shared_ptr<models::Model> made = models::make_model(deck.model, memory);
  options.model = made;
  options.optimizer = deck.optimizer;
  options.global_batch = batch;
  options.total_steps = steps;
  options.resolve = [deck, clock = optim::Clock{steps, batch, batch * steps}](
                        const std::vector<shard::Parameter>& parameters,
                        std::vector<optim::ParameterPolicy>& policies,
                        std::vector<optim::Schedule>& schedules) {
    optim::Policies resolved =
        optim::resolve_policies(deck.optimizer, deck.schedule, parameters, clock);
    if (!resolved.problems.empty())
      base::fail(base::Exit::config, "{}: {}", resolved.problems[0].key, resolved.problems[0].text);
    policies = resolved.parameters;
    schedules = optim::make_schedules(resolved.schedules, deck.schedule, clock);
  };
  return made;
}

// ---------------------------------------------------------------- names

std::string SslRecipe::path_of(const std::string& set) const {
  if (set.starts_with("trunk.")) return "trunk/" + set.substr(6);
  if (set.starts_with("heads.")) {
    const size_t dot = set.find('.', 6);
    const std::string number = set.substr(6, dot - 6);
    return (number == "0" ? "head/" : "head" + number + "/") + set.substr(dot + 1);
  }
  return state_of_loss(set).name.empty() ? "" : state_of_loss(set).name.substr(8);
}

std::string SslRecipe::momentum_of(const std::string& set) const {
  return "/optimizer/sgd/trace/" + path_of(set);
}

StateOfLoss SslRecipe::state_of_loss(const std::string& set) const {
  for (const std::string prefix : {"moco_encoder.", "momentum_teacher."})
    if (set.starts_with(prefix)) {
      // The published key encoder is updated before a step, ours after it.
      const bool buffer = set.find("running_") != std::string::npos;
      return {"/teacher/" + path_of(set.substr(prefix.size())),
              prefix == "moco_encoder." && !buffer};
    }
  if (set == "queue" || set == "queue_ptr" || set == "center") return {"/params/loss/" + set};
  const std::string swav = "swav_criterion.";
  if (!set.starts_with(swav)) return {};
  if (set == swav + "num_iteration") return {};  // the number of the step
  // Scores of the queue are recomputed. Only the first ones are kept, as constants.
  return {"/params/loss/" + set.substr(swav.size())};
}

std::vector<float> SslRecipe::values_of(const std::string& name, const std::string& set,
                                        const Shape& shape) const {
  const Shape found = file_.shape(set);
  std::vector<float> values;
  if (set.ends_with("num_batches_tracked") || set.ends_with("queue_ptr")) {
    for (const int32_t v : file_.ints(set, found)) values.push_back(float(v));
  } else {
    values = file_.floats(set, found);
  }
  if (name.ends_with("loss/queue")) {
    std::vector<float> rows;
    for (int64_t k = 0; k < found[1]; ++k)
      for (int64_t d = 0; d < found[0]; ++d) rows.push_back(values[size_t(d * found[1] + k)]);
    values = rows;
  }
  int64_t count = 1;
  for (const int64_t d : shape) count *= d;
  if (int64_t(values.size()) != count)
    file_.fail(set,
               fmt::format("has the shape {}, {} has {}", text_of(found), name, text_of(shape)));
  return values;
}

double SslRecipe::teacher_keep(int64_t step) const {
  step::EngineOptions options;
  return fill(options)->teacher()->keep(step, steps);
}

}  // namespace golden
