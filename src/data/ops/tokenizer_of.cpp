// SPDX-License-Identifier: Apache-2.0
#include "data/ops/tokenizer_of.hpp"

#include "data/ops/op.hpp"

namespace data {

std::string tokenizer_of(std::string_view preprocess, std::string_view field) {
  std::string name;
  for (const Call& call : parse_calls(preprocess)) {
    if (call.name != "tokenize") continue;
    Arguments arguments(call, op_rows().at("tokenize").parameters, preprocess);
    if (keys_of(arguments).out == field) name = arguments.text("model");
  }
  return name;
}

}  // namespace data
