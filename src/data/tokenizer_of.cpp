#include "data/tokenizer_of.hpp"

#include <algorithm>

#include "data/op.hpp"

namespace data {

std::string tokenizer_of(std::string_view preprocess, std::string_view field) {
  std::string name;
  for (const Call& call : parse_calls(preprocess)) {
    if (call.name != "tokenize") continue;
    std::span<const OpRow> rows = op_rows();
    auto row = std::find_if(rows.begin(), rows.end(), [](const OpRow& r) { return r.name == "tokenize"; });
    Arguments arguments(call, row->parameters, preprocess);
    if (keys_of(arguments).out == field) name = arguments.text("model");
  }
  return name;
}

}  // namespace data
