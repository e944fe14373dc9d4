// SPDX-License-Identifier: Apache-2.0
// Preprocessing ops. An op computes its effect on the spec, so that a deck is checked before any
// data is read, and applies itself to one sample. Registry: registry.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "base/registry.hpp"
#include "data/array.hpp"
#include "data/ops/call_parser.hpp"
#include "data/tokenizers/tokenizer.hpp"

namespace data {

// Facts about one sample that its fields no longer show. Ops record them for reports.
struct Trace {
  struct Captions {
    int64_t max_len = 0, empty = 0;
    // Token counts of every caption to choose from, before cutting, with prefix and end.
    std::vector<int64_t> tokens;
    Texts texts;  // these captions, as the data holds them
  };
  std::map<std::string, std::pair<int64_t, int64_t>> images;  // field -> height, width as decoded
  // field -> all texts from which its text was chosen
  std::map<std::string, Texts> choices;
  std::map<std::string, Captions> captions;  // field of token ids
};

// The input of an op besides the sample. Draws are a function of (seed, op, global position).
struct OpContext {
  base::Stream stream;
  int64_t position = 0;
  int64_t index = -1;  // number of the sample in its data set; -1: it belongs to no set
  const Places* places = nullptr;
  Trace* trace = nullptr;  // null: nothing is recorded
};

// Allocates an op's result for field `key`, computed from `from`. It uses the field's place in the
// batch if the sizes match and `from` is elsewhere.
Array array_for(const OpContext& context, const std::string& key, device::DType type,
                std::vector<int64_t> shape, const Array& from);

class Op {
 public:
  virtual ~Op() = default;
  // Returns the spec after this op. Throws Error(Exit::config) if the op cannot work on its input.
  virtual Spec propagate(Spec spec) const = 0;
  // Any thread may call it. Throws Error(Exit::data) for a bad sample.
  virtual void apply(Sample& sample, const OpContext& context) const = 0;
  // Returns false if the op neither reads nor writes the field. Ops that may follow value_range
  // override it.
  virtual bool touches(const std::string& /*field*/) const { return true; }
  // Returns the scale if the op scales the pixels of the field and does nothing else to it.
  // `before` is the op's input.
  virtual std::optional<ByteScale> byte_scale(const Spec& /*before*/,
                                              const std::string& /*field*/) const {
    return {};
  }
  // Returns true if the op turns text into the ids of `field`. It then sets `ids` to the ids of
  // `text`, neither cut nor padded, and `padding` to the id that fills up the field.
  virtual bool tokenize(const std::string& /*field*/, const std::string& /*text*/,
                        std::vector<int32_t>& /*ids*/, int32_t& /*padding*/) const {
    return false;
  }
  // Returns the tokenizer if the op turns text into the ids of `field`.
  virtual const Tokenizer* tokenizer(const std::string& /*field*/) const { return nullptr; }
  // Adds the op's counts so far, under names such as "labels.captions_cut".
  virtual void count(std::map<std::string, int64_t>&) const {}
};

// One argument of an op. The order of parameters is the order of arguments without a name.
struct Parameter {
  enum class Type {
    flag,     // True, False
    integer,  // 3
    number,   // 3 or 0.5
    numbers,  // a number or a list of them
    pairs,    // [0.1, 1], or a list of such pairs
    text,     // "a"
    size,     // 64 or [48, 64]: height and width
    id,       // 3 or "<pad>"
    texts,    // any number of texts; uses all arguments by position
  };
  std::string name;
  Type type;
  std::string otherwise;  // default, as in a call; "" = required ("None" = may be left out)
  std::string doc;
};

// The arguments of one call, checked against the parameters. Asking for a parameter that the row
// lacks is a bug.
class Arguments {
 public:
  // Throws Error(Exit::config), with the place in `text`, for unknown, missing, repeated or
  // ill-typed arguments.
  Arguments(const Call& call, std::span<const Parameter> parameters, std::string_view text);

  bool has(std::string_view name) const;  // false if None
  bool flag(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  // Returns one element if a single number was given.
  std::vector<float> numbers(std::string_view name) const;
  // Returns one element if a single pair was given.
  std::vector<std::pair<double, double>> pairs(std::string_view name) const;
  std::string text(std::string_view name) const;
  std::vector<std::string> texts(std::string_view name) const;
  std::pair<int64_t, int64_t> size(std::string_view name) const;  // height, width
  const Literal& raw(std::string_view name) const;
  // Throws Error(Exit::config) about the value of one argument.
  [[noreturn]] void fail(std::string_view name, std::string_view what) const;

 private:
  struct Bound {
    const Parameter* parameter;
    Literal value;
    size_t at;
  };
  const Bound& bound(std::string_view name) const;
  std::string op_;
  std::string text_;
  std::vector<Bound> bound_;
};

// Inputs for making ops besides their arguments.
struct OpEnvironment {
  const Tokenizers* tokenizers = nullptr;
  bool open = true;  // false: only specs are computed, no file is opened
};

struct OpRow {
  std::string name, doc;
  std::vector<Parameter> parameters;
  std::unique_ptr<Op> (*make)(const Arguments& arguments, const OpEnvironment& environment);
};
const base::Registry<OpRow>& op_rows();
std::string signature(const OpRow& row);  // "resize(size, key=None, ...)" for --list and messages

// The parameters inkey, outkey and key (which overrides both) that most ops share, and their
// values.
struct Keys {
  std::string in, out;
};
std::vector<Parameter> key_parameters(const std::string& in, const std::string& out);
Keys keys_of(const Arguments& arguments);

// Return the field that an op works on: field_of for propagate, the others for apply. Errors name
// the field.
const FieldSpec& field_of(const Spec& spec, const std::string& key);
Value& value_of(Sample& sample, const std::string& key);
Array& array_of(Sample& sample, const std::string& key);

}  // namespace data
