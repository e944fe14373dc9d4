// SPDX-License-Identifier: Apache-2.0
#include "kernels/paths.hpp"

#include <set>

#include "base/log.hpp"

namespace kernels {

const char* name_of(Path path) {
  switch (path) {
    case Path::attention_cudnn:
      return "attention_cudnn";
    case Path::attention_products:
      return "attention_products";
    case Path::attention_own:
      return "attention_own";
    case Path::fallback:
      return "fallbacks";
    case Path::count:
      break;
  }
  return "?";
}

PathCounts path_counts(const Queue& queue) {
  PathCounts out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = queue.costs()[size_t(Op::count) + i].calls;
  return out;
}

PathCounts since(const PathCounts& now, const PathCounts& before) {
  PathCounts out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = now[i] - before[i];
  return out;
}

void count_path(Path path, Queue& queue) { queue.account(int(Op::count) + int(path), 0, 0, 0); }

void count_fallback(const std::string& what, Queue& queue) {
  static std::set<std::string> logged;
  count_path(Path::fallback, queue);
  if (logged.insert(what).second) base::log::warning("fallback {}", what);
}

}  // namespace kernels
