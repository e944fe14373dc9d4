// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/foreign_vit.hpp"

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/resample.hpp"
#include "checkpoint/torch_names.hpp"

namespace checkpoint {
namespace {

constexpr int64_t kMostPositions = (1 << 16) + 1;  // 256 x 256 patches and a class token

// How numbers of a file become a tensor of ours. Matrices of PyTorch are [out, in], ours [in, out].
enum class How {
  same,     // in the same order, perhaps with another shape
  turned,   // a matrix, transposed
  patches,  // [out, channels, height, width] becomes [height, width, channels, out]
  part,     // one of three parts of the rows
  part_turned,
  cls,        // the class token plus its position: ours has none
  positions,  // without that of the class token
};

struct Rule {
  const char *theirs, *ours;  // {} is the number of a block
  How how = How::same;
  int part = 0;
};

struct Family {
  const char* name;
  const char* mark;       // a tensor that each such ViT has once
  const char* cls;        // the class token
  const char* positions;  // [1, tokens, width]
  // First parts of the names of the trunk's tensors. What has no rule among them is not in our ViT.
  std::vector<std::string> parts;
  std::vector<Rule> rules;  // class token and positions apart
};

#define TRAINER_BLOCK "Transformer/encoderblock_{}/"
#define TRAINER_ATTENTION TRAINER_BLOCK "MultiHeadDotProductAttention_0/"

Family timm() {
  using enum How;
  return {"timm",
          "blocks.0.attn.qkv.weight",
          "cls_token",
          "pos_embed",
          {"patch_embed", "blocks", "norm", "norm_pre", "fc_norm", "reg_token", "register_tokens",
           "dist_token", "rope", "rel_pos_bias", "attn_pool", "pre_logits"},
          {{"patch_embed.proj.weight", "embedding/kernel", patches},
           {"patch_embed.proj.bias", "embedding/bias"},
           {"blocks.{}.norm1.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
           {"blocks.{}.norm1.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
           {"blocks.{}.attn.qkv.weight", TRAINER_ATTENTION "query/kernel", part_turned, 0},
           {"blocks.{}.attn.qkv.weight", TRAINER_ATTENTION "key/kernel", part_turned, 1},
           {"blocks.{}.attn.qkv.weight", TRAINER_ATTENTION "value/kernel", part_turned, 2},
           {"blocks.{}.attn.qkv.bias", TRAINER_ATTENTION "query/bias", part, 0},
           {"blocks.{}.attn.qkv.bias", TRAINER_ATTENTION "key/bias", part, 1},
           {"blocks.{}.attn.qkv.bias", TRAINER_ATTENTION "value/bias", part, 2},
           {"blocks.{}.attn.proj.weight", TRAINER_ATTENTION "out/kernel", turned},
           {"blocks.{}.attn.proj.bias", TRAINER_ATTENTION "out/bias"},
           {"blocks.{}.norm2.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
           {"blocks.{}.norm2.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
           {"blocks.{}.mlp.fc1.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
           {"blocks.{}.mlp.fc1.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
           {"blocks.{}.mlp.fc2.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
           {"blocks.{}.mlp.fc2.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
           {"norm.weight", "Transformer/encoder_norm/scale"},
           {"norm.bias", "Transformer/encoder_norm/bias"},
           {"head.weight", "/head/kernel", turned},
           {"head.bias", "/head/bias"}}};
}

Family transformers() {
  using enum How;
  return {
      "transformers",
      "encoder.layer.0.attention.attention.query.weight",
      "embeddings.cls_token",
      "embeddings.position_embeddings",
      {"embeddings", "encoder", "layernorm"},
      {{"embeddings.patch_embeddings.projection.weight", "embedding/kernel", patches},
       {"embeddings.patch_embeddings.projection.bias", "embedding/bias"},
       {"encoder.layer.{}.layernorm_before.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
       {"encoder.layer.{}.layernorm_before.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
       {"encoder.layer.{}.attention.attention.query.weight", TRAINER_ATTENTION "query/kernel",
        turned},
       {"encoder.layer.{}.attention.attention.query.bias", TRAINER_ATTENTION "query/bias"},
       {"encoder.layer.{}.attention.attention.key.weight", TRAINER_ATTENTION "key/kernel", turned},
       {"encoder.layer.{}.attention.attention.key.bias", TRAINER_ATTENTION "key/bias"},
       {"encoder.layer.{}.attention.attention.value.weight", TRAINER_ATTENTION "value/kernel",
        turned},
       {"encoder.layer.{}.attention.attention.value.bias", TRAINER_ATTENTION "value/bias"},
       {"encoder.layer.{}.attention.output.dense.weight", TRAINER_ATTENTION "out/kernel", turned},
       {"encoder.layer.{}.attention.output.dense.bias", TRAINER_ATTENTION "out/bias"},
       {"encoder.layer.{}.layernorm_after.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
       {"encoder.layer.{}.layernorm_after.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
       {"encoder.layer.{}.intermediate.dense.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel",
        turned},
       {"encoder.layer.{}.intermediate.dense.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
       {"encoder.layer.{}.output.dense.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
       {"encoder.layer.{}.output.dense.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
       {"layernorm.weight", "Transformer/encoder_norm/scale"},
       {"layernorm.bias", "Transformer/encoder_norm/bias"}}};
}

Family torchvision() {
  using enum How;
  return {"torchvision",
          "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
          "class_token",
          "encoder.pos_embedding",
          {"conv_proj", "encoder"},
          {{"conv_proj.weight", "embedding/kernel", patches},
           {"conv_proj.bias", "embedding/bias"},
           {"encoder.layers.encoder_layer_{}.ln_1.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
           {"encoder.layers.encoder_layer_{}.ln_1.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_weight",
            TRAINER_ATTENTION "query/kernel", part_turned, 0},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_weight",
            TRAINER_ATTENTION "key/kernel", part_turned, 1},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_weight",
            TRAINER_ATTENTION "value/kernel", part_turned, 2},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_bias",
            TRAINER_ATTENTION "query/bias", part, 0},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_bias",
            TRAINER_ATTENTION "key/bias", part, 1},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_bias",
            TRAINER_ATTENTION "value/bias", part, 2},
           {"encoder.layers.encoder_layer_{}.self_attention.out_proj.weight",
            TRAINER_ATTENTION "out/kernel", turned},
           {"encoder.layers.encoder_layer_{}.self_attention.out_proj.bias",
            TRAINER_ATTENTION "out/bias"},
           {"encoder.layers.encoder_layer_{}.ln_2.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
           {"encoder.layers.encoder_layer_{}.ln_2.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
           {"encoder.layers.encoder_layer_{}.mlp.0.weight",
            TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
           {"encoder.layers.encoder_layer_{}.mlp.0.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
           {"encoder.layers.encoder_layer_{}.mlp.3.weight",
            TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
           {"encoder.layers.encoder_layer_{}.mlp.3.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
           {"encoder.ln.weight", "Transformer/encoder_norm/scale"},
           {"encoder.ln.bias", "Transformer/encoder_norm/bias"},
           {"heads.head.weight", "/head/kernel", turned},
           {"heads.head.bias", "/head/bias"}}};
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {timm(), transformers(), torchvision()};
  return all;
}

// Returns the number of a block if `name` is `pattern` with a number in the place of {}; "" if it
// is the pattern itself; nothing if it is neither.
std::optional<std::string> block_of(const std::string& name, const std::string& pattern) {
  const size_t at = pattern.find("{}");
  if (at == pattern.npos) return name == pattern ? std::optional<std::string>("") : std::nullopt;
  const std::string after = pattern.substr(at + 2);
  if (name.size() <= pattern.size() - 2 || !name.starts_with(pattern.substr(0, at)) ||
      !name.ends_with(after))
    return {};
  const std::string number = name.substr(at, name.size() - at - after.size());
  const bool digits = std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
  return digits && number.size() < 10 ? std::optional(number) : std::nullopt;
}

class TranslatedVit : public WeightFile {
 public:
  TranslatedVit(std::unique_ptr<WeightFile> file, const Family& family, const std::string& prefix,
                const models::VitFacts& vit)
      : WeightFile(file->path()), file_(std::move(file)), vit_(vit) {
    const std::vector<FileTensor>& all = file_->tensors();
    std::vector<Target> found;
    std::optional<size_t> cls, positions;
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string& name = all[i].name;
      const bool below = name.starts_with(prefix);
      const bool numbers = all[i].type && all[i].type != device::DType::i64;
      const std::string rest = below ? name.substr(prefix.size()) : "";
      if (below && numbers && rest == family.cls) {
        cls = i;
      } else if (below && numbers && rest == family.positions) {
        positions = i;
      } else if (!below || !numbers || !apply(family, rest, i, found)) {
        const bool trunk =
            below &&
            std::ranges::find(family.parts, rest.substr(0, rest.find('.'))) != family.parts.end();
        found.push_back({.tensor = all[i], .sources = {i}});
        if (all[i].type) found.back().tensor.type = device::DType::f32;  // as seek() leaves them
        if (trunk) found.back().tensor.name = vit_.root + rest;
      }
    }
    add_tokens(cls, positions, found);
    std::ranges::stable_sort(found, [](const Target& a, const Target& b) {
      return std::ranges::max(a.sources) < std::ranges::max(b.sources);
    });
    for (Target& t : found) {
      if (t.sources.size() > 1) early_.insert(t.sources.begin(), t.sources.end());
      add(t.tensor);
      targets_.push_back(std::move(t));
    }
  }
  std::string translated_root() const override { return vit_.root; }

 private:
  struct Target {
    FileTensor tensor;
    std::vector<size_t> sources;  // tensors of the file
    How how = How::same;
    int part = 0;
  };

  // Adds what becomes of tensor i. Returns false if no rule has its name and shape.
  bool apply(const Family& family, const std::string& name, size_t i,
             std::vector<Target>& found) const {
    const FileTensor& from = file_->tensors()[i];
    bool any = false;
    for (const Rule& rule : family.rules) {
      const std::optional<std::string> block = block_of(name, rule.theirs);
      if (!block) continue;
      std::string path = rule.ours;
      if (const size_t at = path.find("{}"); at != path.npos) path.replace(at, 2, *block);
      // A slash in front: a part of the model beside the trunk.
      path = path[0] == '/' ? path.substr(1) : vit_.root + path;
      std::vector<int64_t> shape = shape_of(from.shape, rule.how, path);
      if (shape.empty()) return false;
      found.push_back(
          {.tensor = named(from, path, shape), .sources = {i}, .how = rule.how, .part = rule.part});
      any = true;
    }
    return any;
  }

  // Returns our shape of a tensor, or nothing if the file's shape does not allow it.
  std::vector<int64_t> shape_of(std::vector<int64_t> s, How how, const std::string& path) const {
    if (s.empty()) return {};
    if (how == How::part || how == How::part_turned) {
      if (s[0] % 3) return {};
      s[0] /= 3;
    }
    if (how == How::patches) return s.size() == 4 ? std::vector{s[2], s[3], s[1], s[0]} : s;
    if (how == How::turned || how == How::part_turned) {
      if (s.size() != 2) return {};
      std::swap(s[0], s[1]);
    }
    // Rows or columns of the heads are an axis of their own.
    const int64_t heads = vit_.heads;
    const bool out = path.ends_with("/out/kernel");
    if (path.find("Attention_0/") == path.npos || path.ends_with("/out/bias")) return s;
    const size_t axis = out ? 0 : s.size() - 1;
    if (s[axis] % heads) return s;
    s.insert(s.begin() + std::ptrdiff_t(axis) + 1, s[axis] / heads);
    s[axis] = heads;
    return s;
  }

  static FileTensor named(const FileTensor& from, const std::string& path,
                          const std::vector<int64_t>& shape) {
    return {path, shape, device::DType::f32, fmt::format("from {} {}", from.name, from.dtype)};
  }

  // The position table of the file begins with that of the class token, if there is one.
  void add_tokens(std::optional<size_t> cls, std::optional<size_t> positions,
                  std::vector<Target>& found) const {
    const std::vector<FileTensor>& all = file_->tensors();
    bool first = false;
    if (positions) {
      const std::vector<int64_t>& s = all[*positions].shape;
      const bool table =
          s.size() == 3 && s[0] == 1 && s[1] > 1 && s[1] <= kMostPositions && s[2] > 0;
      // Fixed tables of ours have no parameter, so a plan refuses the file's.
      const bool ours = table && vit_.learned_positions;
      first = ours && cls && all[*cls].shape == std::vector<int64_t>{1, 1, s[2]} &&
              (s[1] == vit_.patches + 1 || (s[1] != vit_.patches && grid_side(s[1]) < 0));
      Target t{.tensor = all[*positions], .sources = {*positions}};
      if (first) t.how = How::positions;
      t.tensor = named(all[*positions], vit_.root + (ours ? "pos_embedding" : all[*positions].name),
                       first ? std::vector{s[0], s[1] - 1, s[2]} : s);
      found.push_back(std::move(t));
    }
    if (!cls) return;
    Target t{.tensor = named(all[*cls], all[*cls].name, all[*cls].shape), .sources = {*cls}};
    if (vit_.class_token) {
      t.tensor.name = vit_.root + "cls";
      if (first) t.sources.push_back(*positions);
      t.how = How::cls;
    } else {
      base::log::warning(
          "{} holds a class token, and this model has none (pool = \"tok\"): its "
          "features differ from those of the other program",
          path());
    }
    found.push_back(std::move(t));
  }

  // Returns the numbers of a tensor of the file. Files are read in their order. So tensors that are
  // needed together are read when the reader passes them.
  const std::vector<float>& numbers(size_t source) {
    for (const size_t early : early_)
      if (early < source && (!next_ || early >= *next_)) load(early);
    if (!read_.contains(source)) load(source);
    return read_.at(source);
  }
  void load(size_t source) {
    std::erase_if(read_, [&](const auto& one) { return !early_.contains(one.first); });
    std::vector<float>& to = read_[source];
    to.resize(size_t(file_->tensors()[source].count()));
    file_->begin(source);
    file_->read(to.data(), int64_t(to.size()));
    next_ = source + 1;
  }

  void seek(size_t tensor) override {
    const Target& t = targets_[tensor];
    for (const size_t source : std::set(t.sources.begin(), t.sources.end())) numbers(source);
    const std::vector<int64_t>& s = file_->tensors()[t.sources[0]].shape;
    const std::vector<float>& from = read_.at(t.sources[0]);
    taken_ = 0;
    values_.resize(size_t(tensors()[tensor].count()));
    const size_t n = values_.size(), begin = size_t(t.part) * n;
    if (t.how == How::same || t.how == How::part) {
      std::copy_n(from.begin() + std::ptrdiff_t(t.how == How::part ? begin : 0), n,
                  values_.begin());
    } else if (t.how == How::positions) {
      std::copy_n(from.begin() + s[2], n, values_.begin());
    } else if (t.how == How::cls) {
      values_ = from;
      if (t.sources.size() > 1)
        for (size_t i = 0; i < n; ++i) values_[i] += read_.at(t.sources[1])[i];
    } else if (t.how == How::patches) {
      const size_t columns = size_t(s[0]), channels = size_t(s[1]), places = size_t(s[2] * s[3]);
      for (size_t p = 0; p < places; ++p)
        for (size_t c = 0; c < channels; ++c)
          for (size_t o = 0; o < columns; ++o)
            values_[(p * channels + c) * columns + o] = from[(o * channels + c) * places + p];
    } else {  // matrices
      const size_t in = size_t(s[1]), out = n / in;
      for (size_t o = 0; o < out; ++o)
        for (size_t i = 0; i < in; ++i)
          values_[i * out + o] = from[(t.how == How::part_turned ? begin : 0) + o * in + i];
    }
  }
  void take(char* to, int64_t bytes) override {
    std::copy_n(reinterpret_cast<const char*>(values_.data()) + taken_, bytes, to);
    taken_ += bytes;
  }

  std::unique_ptr<WeightFile> file_;
  const models::VitFacts vit_;
  std::vector<Target> targets_;  // by tensor
  std::set<size_t> early_;       // tensors of the file that are kept for later targets
  std::optional<size_t> next_;   // the file is read from here on
  std::map<size_t, std::vector<float>> read_;
  std::vector<float> values_;  // of the current tensor
  int64_t taken_ = 0;          // bytes
};

}  // namespace

std::unique_ptr<WeightFile> translated_vit(std::unique_ptr<WeightFile> file,
                                           const models::VitFacts& vit,
                                           std::map<std::string, std::string>& map) {
  const std::string root = vit.root.substr(0, vit.root.size() - 1);
  const Family* family = nullptr;
  std::string prefix;
  for (const Family& one : families()) {
    std::optional<std::string> found;
    if (map.empty()) {
      found = trunk_prefix(*file, one.mark, "ViTs", vit.root);
    } else if (map.size() == 1 && map.contains(root)) {
      std::string wanted = map.at(root);
      if (!wanted.empty() && !wanted.ends_with('.')) wanted += '.';
      if (std::ranges::any_of(file->tensors(),
                              [&](const FileTensor& t) { return t.name == wanted + one.mark; }))
        found = wanted;
    }
    if (!found) continue;
    if (family)
      base::fail(base::Exit::checkpoint,
                 "init.from: {} holds ViTs with the names of {} and of {}; choose one: init.map = "
                 "{{ {} = {} }}",
                 file->path(), family->name, one.name, root,
                 base::quoted(found->substr(0, found->empty() ? 0 : found->size() - 1), 200));
    family = &one;
    prefix = *found;
  }
  if (!family) return file;
  map.clear();
  if (!vit.exact_gelu)
    base::log::warning(
        "{} holds a ViT with the names of {}, which computes GELU exactly, and this "
        "model "
        "approximates it: gelu = \"erf\" beside the keys of the ViT gives the same features",
        file->path(), family->name);
  return std::make_unique<TranslatedVit>(std::move(file), *family, prefix, vit);
}

}  // namespace checkpoint
