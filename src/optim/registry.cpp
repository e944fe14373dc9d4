#include "optim/registry.hpp"

namespace optim {

// One row for each optimizer: src/optim/NAME.cpp ends in NAME_row().
#define METHODS(ROW) ROW(adafactor) ROW(adamw) ROW(momentum) ROW(sgd)

#define DECLARE(name) MethodRow name##_row();
#define CALL(name) name##_row(),
METHODS(DECLARE)

const std::vector<MethodRow>& methods() {
  static const std::vector<MethodRow> rows = {METHODS(CALL)};
  return rows;
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const MethodRow& row : methods()) names.push_back(row.name);
  return names;
}

std::shared_ptr<MethodOptions> make_method_options(const std::string& kind) {
  for (const MethodRow& row : methods())
    if (kind == row.name) return row.make_options();
  base::fail(base::Exit::config, "optimizer.kind: no optimizer \"{}\"", kind);
}

}  // namespace optim
