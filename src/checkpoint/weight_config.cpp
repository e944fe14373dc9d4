// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weight_config.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/weight_file.hpp"
#include "io/files.hpp"

namespace checkpoint {
namespace {

using Values = nlohmann::json;

constexpr int64_t kLargestConfig = 1 << 20;  // bytes
constexpr int kDeepest = 16;                 // values within values

// Returns the JSON object in a file; an empty one if there is none.
Values object_in(const std::string& path) {
  std::error_code problem;
  if (!std::filesystem::is_regular_file(path, problem)) return Values::object();
  try {
    if (io::File(path, io::File::Mode::read).size() > kLargestConfig) return Values::object();
    // Deeper values are left out, because copies and destructors recurse.
    auto is_shallow = [](int depth, Values::parse_event_t, Values&) { return depth < kDeepest; };
    Values found = Values::parse(io::read_file(path), is_shallow, false);
    if (found.is_object()) return found;
  } catch (const io::Failure&) {  // it cannot be read
  }
  return Values::object();
}

const Values& inside(const Values& object, const char* name) {
  static const Values none = Values::object();
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? *found : none;
}

void take(const Values& from, const char* name, int64_t& to) {
  const auto found = from.find(name);
  if (found != from.end() && found->is_number_integer() && *found > 0 && *found < (1 << 20))
    to = found->get<int64_t>();
}
void take(const Values& from, const char* name, double& to) {
  const auto found = from.find(name);
  if (found != from.end() && found->is_number() && found->get<double>() > 0)
    to = found->get<double>();
}
void take(const Values& from, const char* name, std::vector<double>& to) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_array() || found->size() != 3) return;
  std::vector<double> all;
  for (const Values& one : *found) {
    if (!one.is_number() || !std::isfinite(one.get<double>())) return;
    all.push_back(one.get<double>());
  }
  to = all;
}
void take(const Values& from, const char* name, std::string& to) {
  const auto found = from.find(name);
  if (found != from.end() && found->is_string()) to = found->get<std::string>();
}

std::string text_in(const Values& from, const char* name) {
  std::string text;
  take(from, name, text);
  return text;
}
bool is_true(const Values& from, const char* name) {
  const auto found = from.find(name);
  return found != from.end() && *found == Values(true);
}

// timm's and open_clip's names.
void take_preprocessing(const Values& from, WeightConfig& to) {
  take(from, "mean", to.mean);
  take(from, "std", to.deviation);
  take(from, "interpolation", to.interpolation);
  take(from, "size", to.image_size);
  if (const auto size = from.find("input_size");
      size != from.end() && size->is_array() && size->size() == 3 && (*size)[2].is_number_integer())
    take(Values{{"size", (*size)[2]}}, "size", to.image_size);
  double crop = 0;  // the share of the resized side that is kept
  take(from, "crop_pct", crop);
  if (crop > 0 && crop <= 1) to.resized = int64_t(std::floor(double(to.image_size) / crop));
  to.squashed = text_in(from, "crop_mode") == "squash" || text_in(from, "resize_mode") == "squash";
}

// The activation of transformers' MLPs. `gated`: SwiGLU, whose gate has SiLU here.
void take_activation(const std::string& name, bool gated, WeightConfig& to) {
  if (name == "gelu" || name == "gelu_python") to.gelu = "erf";
  if (name == "quick_gelu") to.gelu = "quick";
  for (const char* tanh : {"gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"})
    if (name == tanh) to.gelu = "tanh";
  if (name.empty() || (gated ? name == "silu" || name == "swish" : !to.gelu.empty())) return;
  to.foreign.push_back(fmt::format("hidden_act = \"{}\"{}", name, gated ? " of a gated MLP" : ""));
}

// config.json of transformers.
void take_model(const Values& config, WeightConfig& to) {
  const Values& model = config.contains("vision_config") ? inside(config, "vision_config") : config;
  take(model, "num_attention_heads", to.heads);
  take(model, "image_size", to.image_size);
  take(model, "layer_norm_eps", to.norm_epsilon);
  // DINOv2's gated MLP has SiLU whatever the key says.
  if (!is_true(model, "use_swiglu_ffn"))
    take_activation(text_in(model, "hidden_act"), is_true(model, "use_gated_mlp"), to);
  double theta = 100;
  take(model, "rope_theta", theta);
  take(inside(model, "rope_parameters"), "rope_theta", theta);
  if (text_in(model, "model_type") == "dinov3_vit" && theta != 100)
    to.foreign.push_back(fmt::format("rope_theta = {:g}, where this program has 100", theta));
}

// Returns the value of model.trunk.gelu for a pair's tower by its name in timm; "" for others.
std::string gelu_of_timm(const std::string& name) {
  auto has = [&](const char* part) { return name.find(part) != name.npos; };
  if (has("_clip_")) return has("quickgelu") ? "quick" : "erf";
  if (!has("_siglip_")) return "";
  const bool tanh = has("giantopt") || has("so400m_patch16") || has("base_patch32") ||
                    (has("large") && name.ends_with("_512"));
  return tanh ? "tanh" : "erf";
}

// config.json of timm.
void take_timm(const Values& config, WeightConfig& to) {
  const Values& given = inside(config, "model_args");
  take(given, "num_heads", to.heads);
  const std::string name = text_in(config, "architecture"), act = text_in(given, "act_layer");
  to.gelu = act == "gelu_tanh"    ? "tanh"
            : act == "quick_gelu" ? "quick"
            : act == "gelu"       ? "erf"
                                  : gelu_of_timm(name);
  const bool rotary = name.find("_rope_") != name.npos || name.starts_with("vit_pe_");
  if (rotary && name.find("dinov3") == name.npos)
    to.foreign.push_back(
        fmt::format("architecture = \"{}\", whose rotary positions are not DINOv3's", name));
  take_preprocessing(inside(config, "pretrained_cfg"), to);
}

// preprocessor_config.json of transformers.
void take_processor(const Values& from, WeightConfig& to) {
  take(from, "image_mean", to.mean);
  take(from, "image_std", to.deviation);
  int64_t resample = 0, square = 0, shorter = 0, cropped = 0;
  take(from, "resample", resample);
  if (resample == 2) to.interpolation = "bilinear";
  if (resample == 3) to.interpolation = "bicubic";
  take(inside(from, "size"), "height", square);
  take(inside(from, "size"), "shortest_edge", shorter);
  // One number is a square for ViT and DeiT, and the shorter side for CLIP and BiT.
  std::string type = text_in(from, "image_processor_type");
  if (type.empty()) type = text_in(from, "feature_extractor_type");
  const bool shortens = type.find("CLIP") != type.npos || type.starts_with("Bit");
  take(from, "size", shortens ? shorter : square);
  take(inside(from, "crop_size"), "height", cropped);
  take(from, "crop_size", cropped);
  if (!is_true(from, "do_center_crop")) cropped = 0;
  to.squashed = square > 0 && shorter == 0;
  const int64_t resized = to.squashed ? square : shorter;
  if (resized == 0) return;
  to.resized = resized;
  to.image_size = cropped > 0 ? cropped : resized;
}

// open_clip_config.json. The library's defaults are exact GELUs and heads of 64 columns.
void take_open_clip(const Values& config, WeightConfig& to) {
  const Values& model = inside(config, "model_cfg");
  const Values& vision = inside(model, "vision_cfg");
  if (vision.empty()) return;
  take(vision, "image_size", to.image_size);
  int64_t width = 0, columns = 64;
  take(vision, "width", width);
  take(vision, "head_width", columns);
  if (width > 0 && !vision.contains("timm_model_name")) {
    to.heads = width / columns;
    to.gelu = is_true(model, "quick_gelu") ? "quick" : "erf";
    const Values& options = inside(vision, "act_kwargs");
    if (text_in(options, "approximate") == "tanh" && to.gelu == "erf") to.gelu = "tanh";
  }
  take(inside(vision, "norm_kwargs"), "eps", to.norm_epsilon);
  if (const std::string pool = text_in(vision, "pool_type"); !pool.empty() && pool != "tok")
    to.foreign.push_back(fmt::format("pool_type = \"{}\"", pool));
  if (is_true(vision, "final_ln_after_pool")) to.foreign.emplace_back("final_ln_after_pool = true");
  take_preprocessing(inside(config, "preprocess_cfg"), to);
  to.resized = to.image_size;
}

}  // namespace

WeightConfig read_weight_config(const std::string& weights) {
  const std::string file = weights_in(weights);
  const size_t slash = file.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : file.substr(0, slash + 1);
  WeightConfig out;
  auto read = [&](const char* name, auto use) {
    const Values found = object_in(folder + name);
    if (found.empty()) return;
    out.files.emplace_back(name);
    use(found, out);
  };
  read("config.json", [](const Values& v, WeightConfig& to) {
    v.contains("pretrained_cfg") || v.contains("architecture") ? take_timm(v, to)
                                                               : take_model(v, to);
  });
  read("preprocessor_config.json", take_processor);
  read("open_clip_config.json", take_open_clip);
  return out;
}

}  // namespace checkpoint
