// SPDX-License-Identifier: Apache-2.0
// The ops of a preprocessing string: parsed, checked against the source's fields, ready to apply.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "data/ops/op.hpp"

namespace data {

class Pipeline {
 public:
  // Throws Error(Exit::config) with the place in the text for bad syntax, bad arguments and ops
  // that cannot work on their input.
  Pipeline(std::string_view text, Spec input, const OpEnvironment& environment, uint64_t seed = 0);

  const Spec& input() const { return input_; }
  const Spec& spec() const { return spec_; }  // after all ops
  // Returns the scale if the last op that touches the field scales bytes and does nothing else.
  // leave_bytes leaves out this op. The field, and all other fields that the op scales, then stay
  // u8, and their reader scales the bytes.
  std::optional<ByteScale> byte_scale(const std::string& field) const;
  void leave_bytes(const std::string& field);
  // Leaves out all ops that the field does not depend on. Returns the input field that `field` is
  // made from; "" if an op does not name its input. The remaining ops keep their random streams.
  std::string keep_only(const std::string& field);
  // `index`: OpContext::index.
  void apply(Sample& sample, int64_t position, const Places* places = nullptr,
             Trace* trace = nullptr, int64_t index = -1) const;
  // Turns a text into ids like the last op that makes the field from text. Sets `ids`, neither cut
  // nor padded, and the id of padding. Returns false if there is no such op.
  bool tokenize(const std::string& field, const std::string& text, std::vector<int32_t>& ids,
                int32_t& padding) const;
  // Returns the tokenizer of the last op that makes the field from text; null if there is none.
  const Tokenizer* tokenizer(const std::string& field) const;
  std::map<std::string, int64_t> counts() const;

 private:
  struct Stage {
    std::string name;
    std::unique_ptr<Op> op;
    base::Stream stream;
    Spec before;
    Keys keys;  // the fields that the op reads and writes; "" for ops that choose fields
    bool left_out = false;
  };
  int scaling_stage(const std::string& field) const;  // -1: none
  Spec input_, spec_;
  std::vector<Stage> stages_;
};

// Checks only syntax, names and arguments; returns "" or the problem. Other parts of the deck may
// still be wrong.
std::string syntax_problem(std::string_view text);

}  // namespace data
