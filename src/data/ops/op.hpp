// SPDX-License-Identifier: Apache-2.0
// Preprocessing ops. An op knows its effect on the spec, so that a deck is checked before any data
// is read, and applies itself to one sample. Registry: registry.cpp.
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

// What ops tell about one sample that its fields no longer show, for reports.
struct Trace {
  struct Captions {
    int64_t max_len = 0, empty = 0;
    // of every caption there was to choose from, before it was cut; prefix and end counted
    std::vector<int64_t> tokens;
  };
  std::map<std::string, std::pair<int64_t, int64_t>> images;  // field -> height, width as decoded
  // field -> all texts that one was chosen from
  std::map<std::string, Texts> choices;
  std::map<std::string, Captions> captions;  // field of token ids
};

// What an op may depend on besides the sample: draws that are a function of (seed, op, global
// position).
struct OpContext {
  base::Stream stream;
  int64_t position = 0;
  const Places* places = nullptr;
  Trace* trace = nullptr;  // nobody asks
};

// An array for what an op makes of `from` as field `key`: in the field's place if there is one of
// that size, and `from` does not lie there.
Array array_for(const OpContext& context, const std::string& key, device::DType type,
                std::vector<int64_t> shape, const Array& from);

class Op {
 public:
  virtual ~Op() = default;
  // The spec after this op; Error(Exit::config) if the op cannot work on what it gets.
  virtual Spec propagate(Spec spec) const = 0;
  // Any thread. Error(Exit::data) for a sample that is not what it should be.
  virtual void apply(Sample& sample, const OpContext& context) const = 0;
  // false: it neither reads nor writes the field. Ops that may stand behind value_range say so.
  virtual bool touches(const std::string& /*field*/) const { return true; }
  // Where it scales the pixels of the field, all channels alike, and does nothing else.
  virtual std::optional<ByteScale> byte_scale(const std::string& /*field*/) const { return {}; }
  // Adds what it counted so far, under names such as "labels.captions_cut".
  virtual void count(std::map<std::string, int64_t>&) const {}
};

// One argument of an op, in the order in which it may be given without a name.
struct Parameter {
  enum class Type {
    flag,     // True, False
    integer,  // 3
    number,   // 3 or 0.5
    numbers,  // a number or a list of them
    text,     // "a"
    size,     // 64 or [48, 64]: height and width
    id,       // 3 or "<pad>"
    texts,    // any number of texts; takes all arguments by position
  };
  std::string name;
  Type type;
  std::string otherwise;  // default as one would write it; "" = required ("None" = may be left out)
  std::string doc;
};

// The arguments of one call, checked against the parameters; asking for a parameter the row does
// not have is a bug.
class Arguments {
 public:
  // Error(Exit::config) for unknown, missing, repeated or ill-typed arguments, with the place in
  // `text`.
  Arguments(const Call& call, std::span<const Parameter> parameters, std::string_view text);

  bool has(std::string_view name) const;  // false if None
  bool flag(std::string_view name) const;
  int64_t integer(std::string_view name) const;
  double number(std::string_view name) const;
  // one element if a single number was given
  std::vector<float> numbers(std::string_view name) const;
  std::string text(std::string_view name) const;
  std::vector<std::string> texts(std::string_view name) const;
  std::pair<int64_t, int64_t> size(std::string_view name) const;  // height, width
  const Literal& raw(std::string_view name) const;
  // Error(Exit::config) about the value of one argument.
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

// What ops are made from besides their arguments.
struct OpEnvironment {
  const Tokenizers* tokenizers = nullptr;
  bool open = true;  // false: only specs are asked for, no file is touched
};

struct OpRow {
  std::string name, doc;
  std::vector<Parameter> parameters;
  std::unique_ptr<Op> (*make)(const Arguments& arguments, const OpEnvironment& environment);
};
const base::Registry<OpRow>& op_rows();
std::string signature(const OpRow& row);  // "resize(size, key=None, ...)" for --list and messages

// The parameters inkey, outkey, key (which overrides both) that most ops share, and their meaning.
struct Keys {
  std::string in, out;
};
std::vector<Parameter> key_parameters(const std::string& in, const std::string& out);
Keys keys_of(const Arguments& arguments);

// The field an op works on, for propagate and apply; errors name what there is.
const FieldSpec& field_of(const Spec& spec, const std::string& key);
Value& value_of(Sample& sample, const std::string& key);
Array& array_of(Sample& sample, const std::string& key);

}  // namespace data
