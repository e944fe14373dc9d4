// SPDX-License-Identifier: Apache-2.0
// A preprocessing string made into ops: parsed, checked against what the source yields, ready to
// apply.
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
  // Error(Exit::config) with the place in the text, for its syntax, its arguments and ops that
  // cannot work on their input.
  Pipeline(std::string_view text, Spec input, const OpEnvironment& environment, uint64_t seed = 0);

  const Spec& input() const { return input_; }
  const Spec& spec() const { return spec_; }  // after all ops
  // Where the last op that touches the field scales bytes and does nothing else, it may be left to
  // whoever reads them: the field then stays u8.
  std::optional<ByteScale> byte_scale(const std::string& field) const;
  void leave_bytes(const std::string& field);
  void apply(Sample& sample, int64_t position, const Places* places = nullptr,
             Trace* trace = nullptr) const;
  std::map<std::string, int64_t> counts() const;

 private:
  struct Stage {
    std::string name;
    std::unique_ptr<Op> op;
    base::Stream stream;
    Spec before;
    bool left_out = false;
  };
  int scaling_stage(const std::string& field) const;  // -1: none
  Spec input_, spec_;
  std::vector<Stage> stages_;
};

// Syntax, names and arguments only; "" or the problem. For checks while other parts of the deck may
// still be wrong.
std::string syntax_problem(std::string_view text);

}  // namespace data
