// SPDX-License-Identifier: Apache-2.0
#include "comm/gpu_exchange.hpp"

#include <map>

namespace comm {

ExchangeChoice choose_exchange(const std::vector<RankDevice>& ranks, SumOrder order) {
  std::map<std::string, std::vector<size_t>> sharing;
  for (size_t r = 0; r < ranks.size(); ++r) sharing[ranks[r].gpu].push_back(r);
  for (const auto& [gpu, users] : sharing) {
    if (users.size() < 2) continue;
    return {false,
            fmt::format(
                "ranks {} and {}{} of {} share one GPU ({}), and NCCL allows only one rank per GPU",
                users[0], users[1],
                users.size() > 2 ? fmt::format(" and {} more", users.size() - 2) : "",
                ranks[users[0]].host, gpu)};
  }
  if (order == SumOrder::tree)
    return {false,
            "determinism.level = \"mesh\" needs sums along one tree over the ranks, and NCCL adds "
            "in its own order"};
  if (ranks.size() == 1) return {false, "one rank exchanges nothing"};
  return {true, "every rank has a GPU of its own"};
}

}  // namespace comm
