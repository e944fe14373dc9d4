// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/weight_report.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/text.hpp"
#include "checkpoint/foreign_vit.hpp"
#include "checkpoint/resample.hpp"
#include "checkpoint/torch_names.hpp"
#include "checkpoint/weight_config.hpp"
#include "models/trunks/convolutional/convnext.hpp"
#include "models/trunks/convolutional/resnet.hpp"
#include "models/trunks/vit.hpp"

namespace checkpoint {
namespace {

constexpr const char *kRoot = "encoder/", *kDecoderRoot = "decoder/";

// The facts that are known about the ViT of a file.
struct Found {
  std::string family;  // for people
  models::TensorShapes shapes;
  models::TrunkForm form;
  std::vector<std::string> gelu;  // the usual value first
  bool own = false;               // with this program's names or big_vision's, which tell the heads
  bool clip = false, siglip = false;
  double norm_epsilon = 1e-6;  // the usual value
  bool half = false;           // images have mean and deviation 1/2, as usual
  bool rotary = false;         // DINOv3's positions
  bool has(const std::string& path) const { return shapes.contains(kRoot + path); }
  int64_t number(const char* what) const {
    for (const models::TrunkForm::Number& n : form.numbers)
      if (n.what == std::string_view(what)) return n.value;
    return 0;
  }
};

// Returns the shapes of a ViT with this program's or big_vision's names, below one prefix.
models::TensorShapes own_shapes(const WeightFile& file, std::string& prefix) {
  const std::string mark = "embedding/kernel";
  models::TensorShapes out;
  for (const FileTensor& t : file.tensors()) {
    if (!t.name.ends_with(mark) || t.shape.size() != 4) continue;
    prefix = t.name.substr(0, t.name.size() - mark.size());
    for (const FileTensor& of : file.tensors())
      if (of.name.starts_with(prefix)) out[kRoot + of.name.substr(prefix.size())] = of.shape;
    return out;
  }
  return out;
}

Found find_vit(const WeightFile& file) {
  Found out;
  std::string prefix = file.prefix();
  if (file.family().empty()) {
    out.own = true;
    out.shapes = own_shapes(file, prefix);
    out.gelu = {"tanh"};
  } else {
    for (const FileTensor& t : file.tensors()) out.shapes[t.name] = t.shape;
    out.gelu = usual_gelu(file, kRoot);
  }
  const std::optional<models::TrunkForm> form =
      models::vit_weights({.patch_height = 1, .patch_width = 1}).form(out.shapes);
  if (!form) return out;
  out.form = *form;
  out.clip = out.has("pre_norm/scale");
  out.siglip = !out.own && !out.clip && out.gelu.front() == "tanh";
  const bool plain =
      file.family() == "transformers" && !out.has("Transformer/encoderblock_0/LayerScale_0/scale");
  out.rotary = file.is_rotary();
  out.norm_epsilon = out.clip || out.rotary ? 1e-5 : plain ? 1e-12 : 1e-6;
  out.half = out.own || out.siglip || plain;
  out.family = fmt::format("{}{}", out.own ? "this program or big_vision" : file.family(),
                           prefix.empty() ? "" : fmt::format(", below {}", prefix));
  return out;
}

std::string rounded(const std::vector<double>& values) {
  std::vector<std::string> all;
  for (const double v : values) all.push_back(fmt::format("{:.8g}", v));
  return fmt::format("[{}]", fmt::join(all, ", "));
}

// Returns the ops that make the images of the other program.
std::string preprocess(const WeightConfig& config, const Found& vit, int64_t image) {
  const std::vector<double> half = {0.5, 0.5, 0.5}, clip = {0.48145466, 0.4578275, 0.40821073},
                            imagenet = {0.485, 0.456, 0.406};
  std::vector<double> mean = config.mean, deviation = config.deviation;
  if (mean.size() != 3 || deviation.size() != 3) {
    mean = vit.clip ? clip : vit.half ? half : imagenet;
    deviation = vit.clip       ? std::vector{0.26862954, 0.26130258, 0.27577711}
                : mean == half ? half
                               : std::vector{0.229, 0.224, 0.225};
  }
  const char* method = config.interpolation == "bilinear" ? "bilinear" : "bicubic";
  // The usual crop is 7/8 of the shorter side. SigLIP and CLIP have none, and SigLIP squashes.
  const bool squashed = config.resized > 0 ? config.squashed : vit.siglip;
  // A table of positions may be of larger images than those that the files beside it prepare.
  const int64_t told = config.image_size > 0 ? config.resized * image / config.image_size : 0;
  const int64_t resized = told > 0 ? told : vit.siglip || vit.clip ? image : image * 8 / 7;
  std::string ops = fmt::format("decode(precise=True) | {}({}, method=\"{}\", antialias=True)",
                                squashed ? "resize" : "resize_small", resized, method);
  if (!squashed || resized != image) ops += fmt::format(" | central_crop({})", image);
  if (mean == half && deviation == half) return ops + " | value_range(-1, 1)";
  if (mean == clip) return ops + " | clip_value_range";
  if (mean == imagenet) return ops + " | vgg_value_range";
  return ops + fmt::format(" | normalize(mean={}, std={})", rounded(mean), rounded(deviation));
}

// Returns the heads of published ViTs of this width. Most have one for each 64 columns.
int64_t usual_heads(int64_t width, const Found& vit) {
  const std::map<int64_t, int64_t> others = {{1152, 16}, {1280, vit.rotary ? 20 : 16},
                                             {1408, 16}, {1536, vit.siglip ? 16 : 24},
                                             {1664, 16}, {4096, 32}};
  const auto found = others.find(width);
  return found != others.end() ? found->second : std::max<int64_t>(1, width / 64);
}

// Returns what the file holds that no ViT of this program has, a line for each.
std::string refusals(const WeightFile& file, const Found& vit, const WeightConfig& config) {
  std::vector<std::string> all = config.foreign;
  for (size_t i = 0; i < file.tensors().size(); ++i)
    if (file.is_stranger(i))
      all.push_back(fmt::format("{}: this ViT has no such part", describe(file.tensors()[i])));
  if (!vit.own && !vit.rotary && !vit.has("pos_embedding"))
    all.emplace_back("no table of positions, and the rotary ones are not DINOv3's");
  if (!vit.has("Transformer/encoder_norm/scale"))
    all.emplace_back("no norm behind the blocks (encoder/Transformer/encoder_norm/scale)");
  if (vit.has("cls") && vit.has("MAPHead_0/probe"))
    all.emplace_back("a pooling head behind a class token");
  if (!vit.own && !vit.has("cls") && vit.number("registers") > 0)
    all.emplace_back("registers without a class token");
  std::string text;
  for (const std::string& one : all) text += fmt::format("refused  {}\n", one);
  return text;
}

std::string deck_of(const Found& vit, const WeightConfig& config) {
  const int64_t width = vit.number("width"), patch = vit.number("patch");
  int64_t heads = vit.number("heads"), image = config.image_size;
  const auto table = vit.shapes.find(std::string(kRoot) + "pos_embedding");
  if (table != vit.shapes.end() && table->second.size() == 3 && grid_side(table->second[1]) > 0)
    image = grid_side(table->second[1]) * patch;
  if (image <= 0) image = 224;
  const char* note = "";
  if (!vit.own && config.heads > 0) {
    heads = config.heads;
  } else if (!vit.own) {
    heads = usual_heads(width, vit);
    note = heads == std::max<int64_t>(1, width / 64)
               ? "  # tensors do not tell it: one for each 64 of the width, as usual"
               : "  # tensors do not tell it: what published ViTs of this width have";
  }
  std::string text =
      fmt::format("[model]\nimage_size = {}\n\n[model.trunk]\nkind = \"vit\"\n", image);
  auto add = [&](const char* key, const std::string& value, const std::string& comment = "") {
    text += fmt::format("{} = {}{}\n", key, value, comment);
  };
  for (const char* key : {"patch", "depth", "width", "mlp"})
    add(key, fmt::format("{}", vit.number(key)));
  add("heads", fmt::format("{}", heads), note);
  add("pool", vit.has("MAPHead_0/probe") ? "\"map\"" : vit.has("cls") ? "\"tok\"" : "\"gap\"");
  if (vit.rotary) add("posemb", "\"rope\"");
  if (vit.number("SwiGLU") != 0) add("swiglu", "true");
  const std::string gelu = config.gelu.empty() ? vit.gelu.front() : config.gelu;
  const bool sure = !config.gelu.empty() || vit.gelu.size() == 1;
  if (vit.number("SwiGLU") == 0)
    add("gelu", fmt::format("\"{}\"", gelu),
        sure ? ""
             : fmt::format("  # tensors do not tell it: \"{}\" or \"{}\"", vit.gelu[0],
                           vit.gelu[1]));
  add("norm_epsilon",
      fmt::format("{:g}", config.norm_epsilon > 0 ? config.norm_epsilon : vit.norm_epsilon));
  if (vit.number("layer scale") != 0) add("layer_scale", "1", "  # the file's factors replace it");
  if (vit.number("registers") > 0) add("registers", fmt::format("{}", vit.number("registers")));
  if (vit.clip) add("pre_norm", "true");
  text += fmt::format(
      "\n[data.train]\n# Replace the dots by the ops of labels and texts.{}\n"
      "preprocess = '{} | ...'\n",
      config.mean.empty() ? " The other ops are a guess: no file beside the weights tells them."
                          : "",
      preprocess(config, vit, image));
  return text;
}

// Returns the keys of a masked autoencoder whose decoder the file holds too, or "".
std::string decoder_keys(const models::TensorShapes& shapes) {
  const std::string root = kDecoderRoot;
  const auto embed = shapes.find(root + "embed/kernel");
  if (embed == shapes.end() || embed->second.size() != 2) return "";
  const int64_t width = embed->second[1];
  int64_t depth = 0;
  while (
      shapes.contains(fmt::format("{}Transformer/encoderblock_{}/LayerNorm_0/scale", root, depth)))
    ++depth;
  return fmt::format(
      "\n# The decoder too, with init.dont_load = [] and model.kind = \"mae\". Tensors do not tell "
      "its heads: one\n# for each 32 of the width, as published.\n"
      "[model.decoder]\ndepth = {}\nwidth = {}\nheads = {}\n",
      depth, width, std::max<int64_t>(1, width / 32));
}

// Returns the report on a file with a convolutional trunk, or "".
std::string convolutional_trunk(const WeightFile& file) {
  for (const models::TrunkWeights& trunk : {models::resnet_weights(), models::convnext_weights()}) {
    const std::optional<TorchNames> names = TorchNames::of(file, trunk.torch.value());
    if (!names) continue;
    models::TensorShapes shapes;
    for (const FileTensor& t : file.tensors())
      if (const std::optional<std::string> ours = names->ours(t.name)) shapes[*ours] = t.shape;
    const std::optional<models::TrunkForm> form = trunk.form(shapes);
    if (!form) continue;
    return fmt::format("family   torchvision{}\ntrunk    {}\n\n[model.trunk]\n{}",
                       names->prefix().empty() ? "" : ", below " + names->prefix(), form->text,
                       form->deck);
  }
  return "";
}

}  // namespace

std::string report_weights(const InitOptions& options) {
  std::unique_ptr<WeightFile> file = open_weights(options.from);
  int64_t values = 0;
  for (const FileTensor& t : file->tensors())
    if (t.type) values += t.count();
  std::string text = fmt::format("file     {}: {} tensors, {} values\n", options.from,
                                 file->tensors().size(), base::with_commas(values));
  if (const std::string trunk = convolutional_trunk(*file); !trunk.empty()) return text + trunk;
  if (options.map.empty())
    file =
        translated_part(std::move(file), {.root = kDecoderRoot, .patches = -1}, decoder_families());
  std::map<std::string, std::string> map = options.map;
  // Heads and GELU are not known, and the size of the images follows from the table of positions.
  file = translated_vit(std::move(file), {.root = kRoot, .patches = -1, .class_token = true}, map,
                        options.family);
  const Found vit = find_vit(*file);
  if (vit.family.empty()) {
    text += "family   not known; the first tensors are\n";
    for (size_t i = 0; i < std::min<size_t>(5, file->tensors().size()); ++i)
      text += fmt::format("         {}\n", describe(file->tensors()[i]));
    return text;
  }
  const WeightConfig config = read_weight_config(options.from);
  std::string trunk = vit.form.text;
  // Tensors of other programs do not tell the heads.
  if (const size_t at = trunk.find(", heads "); !vit.own && at != trunk.npos)
    trunk.erase(at, trunk.find(',', at + 1) - at);
  text += fmt::format("family   {}\ntrunk    {}\n", vit.family, trunk);
  text += refusals(*file, vit, config);
  if (!config.files.empty()) text += fmt::format("beside   {}\n", fmt::join(config.files, ", "));
  return text + "\n" + deck_of(vit, config) + decoder_keys(vit.shapes);
}

}  // namespace checkpoint
