// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/foreign_vit.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "checkpoint/resample.hpp"
#include "checkpoint/torch_names.hpp"
#include "checkpoint/weight_config.hpp"

namespace checkpoint {
namespace {

constexpr int64_t kMostPositions = (1 << 16) + 1;  // 256 x 256 patches and a class token
constexpr float kSameTable = 4e-3f;                // the file may have rounded its table to bf16

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
  TranslatedVit(std::unique_ptr<WeightFile> file, const VitFamily& family,
                const std::string& prefix, const models::VitFacts& vit, bool rotary = false)
      : WeightFile(file->path()),
        file_(std::move(file)),
        family_(family.name),
        prefix_(prefix),
        vit_(vit),
        rotary_(rotary) {
    const std::vector<FileTensor>& all = file_->tensors();
    std::vector<Target> found;
    std::optional<size_t> cls, positions;
    const std::vector<Rule> rules = has_halves(family) ? halved_rules(family) : family.rules;
    keys_are_masked_ = family.key_mask && tensor_named(family.key_mask);
    for (size_t i = 0; i < all.size(); ++i) {
      const std::string& name = all[i].name;
      if (all[i].count() == 0) continue;  // such as the registers of a ViT that has none
      const bool below = name.starts_with(prefix);
      const bool numbers = all[i].type && all[i].type != device::DType::i64;
      const std::string rest = below ? name.substr(prefix.size()) : "";
      if (below && numbers && rest == family.cls) {
        cls = i;
      } else if (below && numbers && rest == family.positions) {
        positions = i;
      } else if (below && is_unread(family, rest)) {
        continue;
      } else if (!below || !numbers || !apply(rules, rest, i, found)) {
        const bool trunk =
            below &&
            std::ranges::find(family.parts, rest.substr(0, rest.find('.'))) != family.parts.end();
        found.push_back({.tensor = all[i], .sources = {i}, .stranger = trunk});
        if (all[i].type) found.back().tensor.type = device::DType::f32;  // as seek() leaves them
        if (trunk) found.back().tensor.name = vit_.root + rest;
      }
    }
    has_token_ = cls.has_value();
    add_tokens(cls, positions, found);
    add_stem_bias(found);
    add_attention_biases(found);
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
  std::string family() const override { return family_; }
  std::string prefix() const override { return prefix_; }
  bool is_rotary() const override { return rotary_; }
  bool is_stranger(size_t tensor) const override { return targets_[tensor].stranger; }
  // True for a pooling head behind a class token. No ViT of this program has both.
  bool pools_beside_token() const {
    const auto has = [&](const char* path) {
      return std::ranges::any_of(tensors(),
                                 [&](const FileTensor& t) { return t.name == vit_.root + path; });
    };
    return has_token_ && has("MAPHead_0/probe");
  }

 private:
  struct Target {
    FileTensor tensor;
    std::vector<size_t> sources;  // tensors of the file
    How how = How::same;
    int part = 0;           // of these equal ones
    bool stranger = false;  // a part of the trunk without a rule
  };

  const FileTensor* tensor_named(const std::string& rest) const {
    for (const FileTensor& t : file_->tensors())
      if (t.name == prefix_ + rest) return &t;
    return nullptr;
  }

  // True if one matrix of the file holds both the gate and the hidden product of an MLP.
  bool has_halves(const VitFamily& family) const {
    if (!family.hidden) return false;
    const FileTensor *hidden = tensor_named(family.hidden), *output = tensor_named(family.output);
    return hidden && output && hidden->shape.size() == 2 && output->shape.size() == 2 &&
           hidden->shape[0] == 2 * output->shape[1];
  }

  static bool is_unread(const VitFamily& family, const std::string& rest) {
    return std::ranges::any_of(
        family.unread, [&](const std::string& one) { return block_of(rest, one).has_value(); });
  }

  // Adds what becomes of tensor i. Returns false if no rule has its name and shape.
  bool apply(const std::vector<Rule>& rules, const std::string& name, size_t i,
             std::vector<Target>& found) const {
    const FileTensor& from = file_->tensors()[i];
    bool any = false;
    for (const Rule& rule : rules) {
      const std::optional<std::string> block = block_of(name, rule.theirs);
      if (!block) continue;
      std::string path = rule.ours;
      if (const size_t at = path.find("{}"); at != path.npos) path.replace(at, 2, *block);
      // A slash in front: a part of the model beside the trunk.
      path = path[0] == '/' ? path.substr(1) : vit_.root + path;
      std::vector<int64_t> shape = shape_of(from.shape, rule, path);
      if (shape.empty()) return false;
      const bool masked = keys_are_masked_ && path.ends_with("/key/bias");
      found.push_back({.tensor = named(from, path, shape),
                       .sources = {i},
                       .how = masked ? How::zeros : rule.how,
                       .part = rule.part});
      any = true;
    }
    return any;
  }

  // Returns our shape of a tensor, or nothing if the file's shape does not allow it.
  std::vector<int64_t> shape_of(std::vector<int64_t> s, const Rule& rule,
                                const std::string& path) const {
    const How how = rule.how;
    if (how == How::number && std::ranges::all_of(s, [](int64_t side) { return side == 1; }))
      return {1};
    if (s.empty() || how == How::number) return {};
    if (how == How::part || how == How::part_turned) {
      if (s[0] % rule.parts) return {};
      s[0] /= rule.parts;
    }
    if (how == How::patches) {
      // SigLIP 2 of transformers multiplies flat patches [height, width, channels].
      const int64_t side = s.size() == 2 && s[1] % 3 == 0 ? grid_side(s[1] / 3) : -1;
      if (side > 0) return {side, side, 3, s[0]};
      return s.size() == 4 ? std::vector{s[2], s[3], s[1], s[0]} : s;
    }
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

  // True if the file holds the table of positions that the model computes, perhaps below zeros for
  // the class token.
  bool has_fixed_positions(size_t tensor) const {
    const int64_t count = file_->tensors()[tensor].count(),
                  ours = int64_t(vit_.fixed_positions.size());
    const int64_t first = count - ours;  // numbers of the class token
    if (ours == 0 || (first != 0 && first * vit_.patches != ours)) return false;
    // Tensors of a file are read in their order, so this one needs a reader of its own.
    const std::unique_ptr<WeightFile> again = open_weights(path());
    const auto found = std::ranges::find(again->tensors(), file_->tensors()[tensor].name,
                                         [](const FileTensor& t) { return t.name; });
    CHECK(found != again->tensors().end(), "{} has lost a tensor", path());
    std::vector<float> theirs(static_cast<size_t>(count));
    again->begin(size_t(found - again->tensors().begin()));
    again->read(theirs.data(), count);
    std::vector<float> table(static_cast<size_t>(first));
    table.insert(table.end(), vit_.fixed_positions.begin(), vit_.fixed_positions.end());
    return std::ranges::equal(theirs, table,
                              [](float a, float b) { return std::fabs(a - b) < kSameTable; });
  }

  // The position table of the file begins with that of the class token, if there is one.
  void add_tokens(std::optional<size_t> cls, std::optional<size_t> positions,
                  std::vector<Target>& found) const {
    const std::vector<FileTensor>& all = file_->tensors();
    bool first = false;
    if (positions && !has_fixed_positions(*positions)) {
      std::vector<int64_t> s = all[*positions].shape;
      if (s.size() == 2) s.insert(s.begin(), 1);
      const bool table =
          s.size() == 3 && s[0] == 1 && s[1] > 1 && s[1] <= kMostPositions && s[2] > 0;
      // Fixed tables of ours have no parameter, so a plan refuses another one.
      const bool ours = table && vit_.learned_positions;
      first = ours && cls && is_token(all[*cls].shape, s[2]) &&
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
      if (t.tensor.shape.size() == 1) t.tensor.shape = {1, 1, t.tensor.shape[0]};
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

  static bool is_token(const std::vector<int64_t>& shape, int64_t width) {
    return shape == std::vector{width} || shape == std::vector<int64_t>{1, 1, width};
  }

  // ViTs with a norm in front of their blocks have no bias of the patches. Ours gets zeros.
  void add_stem_bias(std::vector<Target>& found) const {
    const Target* kernel = nullptr;
    bool bias = false, norm = false;
    for (const Target& t : found) {
      if (t.tensor.name == vit_.root + "embedding/kernel") kernel = &t;
      bias |= t.tensor.name == vit_.root + "embedding/bias";
      norm |= t.tensor.name == vit_.root + "pre_norm/scale";
    }
    if (!kernel || bias || !norm || kernel->tensor.shape.size() != 4) return;
    found.push_back({.tensor = {vit_.root + "embedding/bias",
                                {kernel->tensor.shape[3]},
                                device::DType::f32,
                                "zeros, as the file has none: "},
                     .sources = kernel->sources,
                     .how = How::zeros});
  }

  // Some ViTs have no biases of queries, keys or values. Ours get zeros.
  void add_attention_biases(std::vector<Target>& found) const {
    const std::string blocks = vit_.root + "Transformer/";
    for (const char* part : {"/query/", "/key/", "/value/"}) {
      const std::string kernel = std::string(part) + "kernel", bias = std::string(part) + "bias";
      if (std::ranges::any_of(found, [&](const Target& t) {
            return t.tensor.name.starts_with(blocks) && t.tensor.name.ends_with(bias);
          }))
        continue;
      for (size_t i = found.size(); i-- > 0;) {
        const FileTensor of = found[i].tensor;
        if (!of.name.starts_with(blocks) || !of.name.ends_with(kernel) || of.shape.size() != 3)
          continue;
        const std::string path = of.name.substr(0, of.name.size() - kernel.size()) + bias;
        found.push_back({.tensor = {path,
                                    {of.shape[1], of.shape[2]},
                                    device::DType::f32,
                                    "zeros, as the file has none: "},
                         .sources = found[i].sources,
                         .how = How::zeros});
      }
    }
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
    if (t.how == How::zeros) {
      std::ranges::fill(values_, 0.0f);
    } else if (t.how == How::same || t.how == How::part || t.how == How::number) {
      std::copy_n(from.begin() + std::ptrdiff_t(t.how == How::part ? begin : 0), n,
                  values_.begin());
    } else if (t.how == How::positions) {
      std::copy_n(from.begin() + s.back(), n, values_.begin());
    } else if (t.how == How::cls) {
      values_ = from;
      if (t.sources.size() > 1)
        for (size_t i = 0; i < n; ++i) values_[i] += read_.at(t.sources[1])[i];
    } else if (t.how == How::patches && s.size() == 4) {
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
  const std::string family_, prefix_;
  const models::VitFacts vit_;
  const bool rotary_;
  bool keys_are_masked_ = false, has_token_ = false;
  std::vector<Target> targets_;  // by tensor
  std::set<size_t> early_;       // tensors of the file that are kept for later targets
  std::optional<size_t> next_;   // the file is read from here on
  std::map<size_t, std::vector<float>> read_;
  std::vector<float> values_;  // of the current tensor
  int64_t taken_ = 0;          // bytes
};

// True if the file's ViT has DINOv3's rotary positions.
bool is_rotary_vit(const WeightFile& file, const VitFamily& family, const std::string& prefix) {
  auto has = [&](const std::string& rest) {
    return std::ranges::any_of(file.tensors(),
                               [&](const FileTensor& t) { return t.name == prefix + rest; });
  };
  // Other rotary ViTs of timm turn other pairs of numbers. They have biases of keys, or a table.
  return *family.positions == 0 || (family.key_mask && !has(family.positions) &&
                                    (has(family.key_mask) || !has("blocks.0.attn.qkv.bias")));
}

// Refuses to take DINOv3's rotary positions for others, as tensors may not show the difference.
void compare_positions(const std::string& path, bool rotary, const models::VitFacts& vit) {
  if (rotary == vit.rotary) return;
  if (rotary)
    base::fail(base::Exit::checkpoint,
               "init.from: {} holds a ViT with the rotary positions of DINOv3, and this model has "
               "others: posemb = \"rope\" fits",
               path);
  base::fail(base::Exit::checkpoint,
             "init.from: {} holds a ViT without the rotary positions of DINOv3, and this model has "
             "them (posemb = \"rope\")",
             path);
}

// Refuses a model that the files beside the weights do not describe, where no tensor shows it.
void compare_with_files(const WeightConfig& beside, const std::string& path,
                        const models::VitFacts& vit) {
  if (beside.files.empty()) return;
  constexpr const char* kNotDescribed =
      ". If it does not describe these weights, move them to a folder of their own";
  const std::string where = fmt::format("{} beside {}", fmt::join(beside.files, ", "), path);
  if (!beside.foreign.empty())
    base::fail(base::Exit::checkpoint, "init.from: {} says {}: no ViT of this program is so{}",
               where, fmt::join(beside.foreign, "; "), kNotDescribed);
  if (beside.heads > 0 && beside.heads != vit.heads)
    base::fail(base::Exit::checkpoint,
               "init.from: {} says that the ViT has {} heads, and this model has "
               "model.trunk.heads = {}{}",
               where, beside.heads, vit.heads, kNotDescribed);
}

// Warns if no program that has such ViTs computes GELU as the model does. told: what a file beside
// the weights says, or "".
void compare_gelu(const WeightFile& file, const models::VitFacts& vit, const std::string& told) {
  const std::vector<std::string> theirs =
      told.empty() ? usual_gelu(file, vit.root) : std::vector{told};
  if (vit.gelu.empty() || std::ranges::find(theirs, vit.gelu) != theirs.end()) return;
  const std::string& first = theirs.front();
  base::log::warning(
      "{} holds a ViT with the names of {}, which computes GELU {}, and this model has gelu = "
      "\"{}\": gelu = \"{}\" beside the keys of the ViT gives the same features",
      file.path(), file.family(),
      !told.empty()      ? fmt::format("as \"{}\" (a file beside it says so)", told)
      : first == "quick" ? "by a sigmoid if it is OpenAI's, else exactly"
      : first == "tanh"  ? "by tanh"
                         : "exactly",
      vit.gelu, fmt::join(theirs, "\" or \""));
}

}  // namespace

std::vector<std::string> usual_gelu(const WeightFile& file, const std::string& root) {
  auto has = [&](const char* path) {
    return std::ranges::any_of(file.tensors(),
                               [&](const FileTensor& t) { return t.name == root + path; });
  };
  if (has("pre_norm/scale")) return {"quick", "erf"};
  // Small towers of SigLIP have the exact function in timm.
  if (has("MAPHead_0/probe") && !has("cls")) return {"tanh", "erf"};
  return {"erf"};
}

std::unique_ptr<WeightFile> translated_part(std::unique_ptr<WeightFile> file,
                                            const models::VitFacts& part,
                                            const std::vector<VitFamily>& families) {
  for (const VitFamily& family : families) {
    const std::string mark = family.mark;
    for (const FileTensor& t : file->tensors()) {
      if (!t.name.ends_with(mark)) continue;
      const std::string prefix = t.name.substr(0, t.name.size() - mark.size());
      if (!prefix.empty() && !prefix.ends_with('.')) continue;
      return std::make_unique<TranslatedVit>(std::move(file), family, prefix, part);
    }
  }
  return file;
}

std::unique_ptr<WeightFile> translated_vit(std::unique_ptr<WeightFile> file,
                                           const models::VitFacts& vit,
                                           std::map<std::string, std::string>& map,
                                           const std::string& wanted_family) {
  const std::string root = vit.root.substr(0, vit.root.size() - 1);
  const VitFamily* family = nullptr;
  std::string prefix;
  for (const VitFamily& one : vit_families()) {
    if (wanted_family != kAnyFamily && wanted_family != one.key) continue;
    std::optional<std::string> found;
    if (map.empty()) {
      found = trunk_prefix(*file, one.mark, "ViTs", vit.root,
                           one.shares_mark ? one.rules.front().theirs : "");
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
                 "{{ {} = {} }}, or init.family = \"{}\"",
                 file->path(), family->name, one.name, root,
                 base::quoted(found->substr(0, found->empty() ? 0 : found->size() - 1), 200),
                 one.key);
    family = &one;
    prefix = *found;
  }
  if (!family && wanted_family != kAnyFamily && wanted_family != kOwnNames)
    base::fail(base::Exit::checkpoint, "init.family = \"{}\": {} holds no ViT with such names",
               wanted_family, file->path());
  if (!family) return file;
  map.clear();
  const bool rotary = is_rotary_vit(*file, *family, prefix);
  const bool compares = vit.patches >= 0;  // there is a model
  if (compares) compare_positions(file->path(), rotary, vit);
  auto translated = std::make_unique<TranslatedVit>(std::move(file), *family, prefix, vit, rotary);
  if (!compares) return translated;
  if (translated->pools_beside_token())
    base::fail(base::Exit::checkpoint,
               "init.from: {} holds a ViT with a class token and a pooling head: no ViT of this "
               "program has both",
               translated->path());
  const WeightConfig beside = read_weight_config(translated->path());
  compare_with_files(beside, translated->path(), vit);
  compare_gelu(*translated, vit, beside.gelu);
  return translated;
}

}  // namespace checkpoint
