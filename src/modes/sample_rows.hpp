// SPDX-License-Identifier: Apache-2.0
// Modes that run a forward pass on every sample of a data set and write a row for each of them:
// extract and predict. Row i is the row of sample i, so the file does not depend on the number of
// ranks. The next job continues the file of a killed job (records/row_file.hpp).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "models/model.hpp"
#include "modes/mode.hpp"
#include "records/row_file.hpp"
#include "train/job.hpp"

namespace modes {

// The examples of a rank's pass. Those from `count` on are padding.
struct RowBatch {
  models::HostBatch host;
  int64_t count = 0;
  std::function<std::string(int64_t i)> name;  // of example i, for messages
};

// The part of such a mode that knows its columns.
class RowMaker {
 public:
  virtual ~RowMaker() = default;
  virtual std::vector<records::RowColumn> columns() const = 0;
  // Returns datasets of texts, by name.
  virtual std::map<std::string, std::vector<std::string>> lists() const { return {}; }
  // Returns what decides the rows besides model, weights and data, by key of the deck.
  virtual std::map<std::string, std::string> made_from() const = 0;
  // Runs the pass and returns the bytes of each column, [batch.count, row].
  virtual std::vector<std::string> run(step::Engine& engine, const RowBatch& batch) = 0;
};

constexpr step::PassId kRowPass{0};  // the only pass of the mode's engine

struct RowMode {
  const char* name;            // of the mode and its section; a literal, because it names the phase
  std::string data;            // name of the data set
  std::string data_key;        // key of the deck that names it
  std::string text_data = {};  // set whose tokenize turns texts into ids; "" = data
  std::set<std::string> data_sets() const { return {data, text_data.empty() ? data : text_data}; }
  const train::RowOptions& options;
  std::string default_out;
  step::MakePass make_pass;
  // Called when the engine, with the pass as kRowPass, and the data sets exist. `texts` is the set
  // of text_data.
  std::function<std::unique_ptr<RowMaker>(const step::Engine& engine, const data::Dataset& texts)>
      make;
};

// Does the work and returns the exit code. All ranks call.
int write_sample_rows(Call& call, const RowMode& mode);

}  // namespace modes
