// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weight_config.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/files.hpp"

namespace checkpoint {
namespace {

using Values = nlohmann::json;

constexpr int64_t kLargestConfig = 1 << 20;  // bytes

// Returns the JSON object in a file; an empty one if there is none.
Values object_in(const std::string& path) {
  if (!io::exists(path) || io::is_directory(path)) return Values::object();
  if (io::File(path, io::File::Mode::read).size() > kLargestConfig) return Values::object();
  Values found = Values::parse(io::read_file(path), nullptr, false);
  return found.is_object() ? found : Values::object();
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

// timm's and open_clip's names.
void take_preprocessing(const Values& from, WeightConfig& to) {
  take(from, "mean", to.mean);
  take(from, "std", to.deviation);
  take(from, "interpolation", to.interpolation);
  take(from, "crop_pct", to.crop);
  take(from, "size", to.image_size);
  if (const auto size = from.find("input_size");
      size != from.end() && size->is_array() && size->size() == 3 && (*size)[2].is_number_integer())
    take(Values{{"size", (*size)[2]}}, "size", to.image_size);
}

void take_model(const Values& config, WeightConfig& to) {
  const Values& vision = inside(config, "vision_config");
  const Values& model = vision.empty() ? config : vision;
  take(model, "num_attention_heads", to.heads);
  take(model, "image_size", to.image_size);
  take(model, "layer_norm_eps", to.norm_epsilon);
  std::string activation;
  take(model, "hidden_act", activation);
  if (activation == "gelu") to.gelu = "erf";
  if (activation == "quick_gelu") to.gelu = "quick";
  if (activation == "gelu_pytorch_tanh" || activation == "gelu_new") to.gelu = "tanh";
}

// preprocessor_config.json of transformers.
void take_processor(const Values& from, WeightConfig& to) {
  take(from, "image_mean", to.mean);
  take(from, "image_std", to.deviation);
  int64_t resample = 0, resized = 0, cropped = 0;
  take(from, "resample", resample);
  if (resample == 2) to.interpolation = "bilinear";
  if (resample == 3) to.interpolation = "bicubic";
  for (const char* name : {"height", "shortest_edge"}) take(inside(from, "size"), name, resized);
  take(from, "size", resized);
  take(inside(from, "crop_size"), "height", cropped);
  take(from, "crop_size", cropped);
  const auto crops = from.find("do_center_crop");
  if (crops == from.end() || *crops != Values(true)) cropped = 0;
  if (resized > 0) to.image_size = cropped > 0 ? cropped : resized;
  if (resized > 0 && cropped > 0) to.crop = double(cropped) / double(resized);
}

}  // namespace

WeightConfig read_weight_config(const std::string& weights) {
  const size_t slash = weights.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : weights.substr(0, slash + 1);
  WeightConfig out;
  auto read = [&](const char* name, auto use) {
    const Values found = object_in(folder + name);
    if (found.empty()) return;
    out.files.emplace_back(name);
    use(found);
  };
  read("config.json", [&](const Values& v) {
    take_model(v, out);
    take_preprocessing(inside(v, "pretrained_cfg"), out);
  });
  read("preprocessor_config.json", [&](const Values& v) { take_processor(v, out); });
  read("open_clip_config.json", [&](const Values& v) {
    take(inside(inside(v, "model_cfg"), "vision_cfg"), "image_size", out.image_size);
    const auto quick = inside(v, "model_cfg").find("quick_gelu");
    if (quick != inside(v, "model_cfg").end() && *quick == Values(true)) out.gelu = "quick";
    take_preprocessing(inside(v, "preprocess_cfg"), out);
  });
  return out;
}

}  // namespace checkpoint
