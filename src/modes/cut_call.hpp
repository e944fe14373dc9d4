// SPDX-License-Identifier: Apache-2.0
// OUT.partial, the folder beside evaluate.out in which a call of --mode eval keeps its finished
// work. If the call is cut off, the next call continues from this folder. It holds the rows of
// evaluations that are done and the journal of the one in progress. A call that ends normally
// removes it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "eval/journal.hpp"

namespace modes {

class CutCall {
 public:
  // Reads the rows that a cut call has left. With out = "" nothing is kept. All ranks call.
  CutCall(comm::Comm& world, const std::string& out);
  bool keeps() const { return !folder_.empty(); }

  // Returns and forgets one row that the cut call made for this evaluation; "" if none is left.
  // `key` names the evaluation and all that its values depend on.
  std::string take(const std::string& key);
  // Opens the journal of an evaluation. All ranks call.
  std::unique_ptr<eval::Journal> open(const std::string& key, const std::string& label,
                                      const eval::Journal::Identity& identity);
  // Keeps the row of an evaluation and ends its journal. All ranks call.
  void add(const std::string& key, const std::string& row, eval::Journal& journal);
  // Removes the folder, at the end of the call. All ranks call.
  void remove();

 private:
  std::string journal_of(const std::string& key) const;

  comm::Comm& world_;
  std::string folder_;                                     // "": nothing is kept
  std::vector<std::pair<std::string, std::string>> rows_;  // of the cut call, by key
};

}  // namespace modes
