// SPDX-License-Identifier: Apache-2.0
#include "models/embedding_kind.hpp"

#include <fmt/format.h>

namespace models {

void check_views(config::Table& t, const char* name, const std::vector<int64_t>& views,
                 int64_t available) {
  for (const int64_t view : views)
    if (view >= available)
      t.error(name, fmt::format("view {} is not among the {} that model.views makes of the first "
                                "size; views are counted from 0",
                                view, available));
}

void need_one_output(const EmbeddingOptions& options, const EmbeddingNetwork& network) {
  const std::vector<int64_t> widths = network.widths();
  if (widths.size() == 1) return;
  options.refuse_last_head(
      fmt::format("has {} outputs, of {} values, and this loss reads one; end with a head of kind "
                  "mlp or dino",
                  widths.size(), fmt::join(widths, ", ")));
}

}  // namespace models
