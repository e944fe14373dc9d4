// SPDX-License-Identifier: Apache-2.0
#include "modes/mode.hpp"

namespace modes {

Mode train_mode();
Mode eval_mode();
Mode bench_mode();
Mode plan_mode();
Mode show_mode();
Mode index_mode();
Mode extract_mode();
Mode predict_mode();
Mode caption_mode();
Mode selftest_mode();

const std::vector<Mode>& registry() {
  static const std::vector<Mode> rows = {
      train_mode(), eval_mode(), caption_mode(), extract_mode(), predict_mode(),
      bench_mode(), plan_mode(), show_mode(),    index_mode(),   selftest_mode()};
  return rows;
}

const Mode& mode_named(const std::string& name) {
  for (const Mode& row : registry())
    if (row.name == name) return row;
  base::fail(base::Exit::internal, "there is no mode \"{}\"", name);
}

}  // namespace modes
