// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>

#include "base/error.hpp"
#include "base/text.hpp"
#include "data/hint.hpp"
#include "data/ops/op.hpp"

namespace data {
namespace {

using base::Exit;

enum class End { none, yes, sticky };
// SentencePiece needs far more memory than the text.
constexpr size_t kMostTextBytes = size_t{1} << 20;

class Tokenize : public Op {
 public:
  Tokenize(const Arguments& a, const OpEnvironment& environment)
      : keys_(keys_of(a)),
        mask_key_(a.text("mask_key")),
        length_(a.integer("max_len")),
        lower_(a.flag("lower")),
        has_prefix_(a.has("prefix")) {
    std::string model = a.text("model"), end = a.text("eos");
    if (length_ < 1) a.fail("max_len", fmt::format("max_len is {}, at least 1 is needed", length_));
    if (end != "none" && end != "yes" && end != "sticky")
      a.fail("eos", fmt::format("eos is \"{}\"; it may be \"none\", \"yes\" or \"sticky\"", end));
    end_ = end == "none" ? End::none : end == "yes" ? End::yes : End::sticky;
    std::vector<std::string> names =
        environment.tokenizers ? environment.tokenizers->names() : std::vector<std::string>{};
    if (std::find(names.begin(), names.end(), model) == names.end()) {
      a.fail("model", fmt::format("there is no [tokenizer.{}]{}; there is {}", model,
                                  nearest_hint(model, names), list_of(names)));
    }
    if (!environment.open) return;
    tokenizer_ = environment.tokenizers->get(model);
    std::optional<int32_t> pad = number_or_piece(a, "pad_value"), stop = tokenizer_->end_id();
    if (!pad && !a.has("pad_value"))
      // spm_train adds no such piece unless it is asked to.
      a.fail("pad_value",
             fmt::format("tokenizer '{}' has no padding piece: give pad_value=ID, a number that "
                         "fills up short texts, or train the model with spm_train --pad_id=0 "
                         "--eos_id=1 --unk_id=2 --bos_id=-1",
                         model));
    if (!pad)
      a.fail("pad_value", fmt::format("tokenizer '{}' has no piece {}; give a number", model,
                                      text_of(a.raw("pad_value"))));
    if (end_ != End::none && !stop)
      a.fail("eos", fmt::format("tokenizer '{}' has no end piece: use eos=\"none\", or train the "
                                "model with spm_train --eos_id=1",
                                model));
    pad_ = *pad;
    stop_ = stop.value_or(0);
    if (has_prefix_) tokenizer_->encode(a.text("prefix"), prefix_);
    if (int64_t(prefix_.size()) >= length_)
      a.fail(
          "prefix",
          fmt::format(
              "the prefix alone has {} ids, but max_len is {}; shorten the prefix or raise max_len",
              prefix_.size(), length_));
  }

  Spec propagate(Spec spec) const override {
    const FieldSpec& in = field_of(spec, keys_.in);
    if (in.kind != FieldSpec::Kind::text)
      base::fail(Exit::config, "field '{}' is {}, not text{}", keys_.in, text_of(in),
                 in.kind == FieldSpec::Kind::texts ? "; put choice before it" : "");
    int64_t limit = tokenizer_ ? std::max<int64_t>(tokenizer_->vocab_size(), pad_ + 1) : 0;
    spec[keys_.out] = FieldSpec::array(device::DType::i32, {length_}, limit);
    if (has_prefix_) spec[mask_key_] = FieldSpec::array(device::DType::f32, {length_});
    return spec;
  }
  bool touches(const std::string& field) const override {
    return field == keys_.in || field == keys_.out || field == mask_key_;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const std::string* text = std::get_if<std::string>(&value_of(sample, keys_.in));
    if (!text) base::fail(Exit::data, "field '{}' is not text", keys_.in);
    if (context.trace) trace_captions(*text, *context.trace);
    std::vector<int32_t> ids = encoded(*text);
    size_t length = size_t(length_);
    if (has_prefix_) sample[mask_key_] = mask(std::min(ids.size(), length));
    captions_.fetch_add(1, std::memory_order_relaxed);
    if (base::trim(*text).empty()) empty_.fetch_add(1, std::memory_order_relaxed);
    if (ids.size() > length) {
      cut_.fetch_add(1, std::memory_order_relaxed);
      if (end_ == End::sticky) ids[length - 1] = stop_;
    }
    ids.resize(length, pad_);
    Array out(device::DType::i32, {length_});
    std::copy(ids.begin(), ids.end(), out.i32());
    sample[keys_.out] = std::move(out);
  }

  bool tokenize(const std::string& field, const std::string& text, std::vector<int32_t>& ids,
                int32_t& padding) const override {
    if (field != keys_.out) return false;
    ids = encoded(text);
    padding = pad_;
    return true;
  }
  const Tokenizer* tokenizer(const std::string& field) const override {
    return field == keys_.out ? tokenizer_.get() : nullptr;
  }

  void count(std::map<std::string, int64_t>& counts) const override {
    counts[keys_.out + ".captions"] += captions_;
    counts[keys_.out + ".captions_cut"] += cut_;
    counts[keys_.out + ".captions_empty"] += empty_;
  }

 private:
  // Returns all ids, not cut. Refuses bytes that are not text, which would silently become unknown
  // pieces.
  std::vector<int32_t> encoded(const std::string& text) const {
    if (text.size() > kMostTextBytes)
      base::fail(Exit::data, "a text of {} bytes; at most {} are read", text.size(),
                 kMostTextBytes);
    if (!base::is_utf8(text))
      base::fail(Exit::data, "{} is not UTF-8 (another encoding, or no text?)",
                 base::quoted(text, 40));
    if (text.find('\0') != text.npos)
      base::fail(Exit::data, "the text {} holds a zero byte", base::quoted(text, 40));
    std::vector<int32_t> ids;
    tokenizer_->encode(lower_ ? ascii_lower(text) : text, ids);
    ids.insert(ids.begin(), prefix_.begin(), prefix_.end());
    if (end_ != End::none) ids.push_back(stop_);
    return ids;
  }

  void trace_captions(const std::string& text, Trace& trace) const {
    auto choices = trace.choices.find(keys_.in);
    Trace::Captions& captions = trace.captions[keys_.out];
    captions.max_len = length_;
    for (const std::string& one : choices == trace.choices.end() ? Texts{text} : choices->second) {
      captions.tokens.push_back(int64_t(encoded(one).size()));
      captions.empty += base::trim(one).empty();
      captions.texts.push_back(one);
    }
  }

  // Returns 1 where a token counts in the loss: not on the prefix, not on padding.
  Array mask(size_t end) const {
    Array out(device::DType::f32, {length_});
    for (size_t i = 0; i < size_t(length_); ++i)
      out.f32()[i] = i >= prefix_.size() && i < end ? 1.0f : 0.0f;
    return out;
  }

  std::optional<int32_t> number_or_piece(const Arguments& a, std::string_view name) const {
    if (!a.has(name)) return tokenizer_->pad_id();
    const Literal& v = a.raw(name);
    if (const std::string* piece = std::get_if<std::string>(&v))
      return tokenizer_->piece_id(*piece);
    int64_t id = std::get<int64_t>(v);
    if (id < 0 || id > INT32_MAX) a.fail(name, "ids begin at 0");
    return int32_t(id);
  }

  Keys keys_;
  std::string mask_key_;
  int64_t length_;
  bool lower_, has_prefix_;
  std::vector<int32_t> prefix_;
  End end_ = End::none;
  std::shared_ptr<const Tokenizer> tokenizer_;
  int32_t pad_ = 0, stop_ = 0;
  mutable std::atomic<int64_t> captions_{0}, cut_{0}, empty_{0};
};

}  // namespace

OpRow tokenize_row() {
  using Type = Parameter::Type;
  std::vector<Parameter> parameters{
      {"model", Type::text, "", "NAME of a [tokenizer.NAME]"},
      {"max_len", Type::integer, "",
       "length of the result; shorter texts are padded, longer ones cut"},
      {"eos", Type::text, "\"none\"",
       "end piece: \"none\", \"yes\" (may be cut off) or \"sticky\" (always there)"},
      {"lower", Type::flag, "True", "lower-case first; ASCII letters only, as published"},
      {"pad_value", Type::id, "None",
       "id or piece to pad with; default: the tokenizer's pad piece"}};
  for (Parameter& p : key_parameters("text", "labels")) parameters.push_back(std::move(p));
  parameters.push_back(
      {"prefix", Type::text, "None",
       "text before every caption, which the model gets but does not predict; not lower-cased"});
  parameters.push_back(
      {"mask_key", Type::text, "\"label_masks\"",
       "with a prefix: field for f32 [max_len], 1 where a token counts in the loss"});
  return {"tokenize", "text -> i32 [max_len]; with a prefix also label_masks",
          std::move(parameters),
          [](const Arguments& a, const OpEnvironment& e) -> std::unique_ptr<Op> {
            return std::make_unique<Tokenize>(a, e);
          }};
}

}  // namespace data
