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

}  // namespace models
