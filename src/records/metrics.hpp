// SPDX-License-Identifier: Apache-2.0
// Metrics of a run (design 3.14). Only rank 0 writes.
//
//   metrics.jsonl             one JSON object per row, written as it comes, synced at flushes
//       {"kind":"train","step":12,"loss":9.87,...}
//       {"kind":"eval","eval":"val","step":12,"perplexity":40.1,...}
//       {"kind":"start","step":0,"attempt":1,"time":...,"killed":0,"num_params":...}
//                             One start row per attempt holds the step that it began from. Numbers
//                             that are not finite are the strings "nan", "inf", "-inf". A metric
//                             that was not measured is absent.
//                             Rows about tensors: tensor_rows.hpp
//   metrics.abandoned.jsonl   rows after the step from which a later attempt continued, with their
//                             attempt, and lines that are not rows. A whole file that is in the
//                             way becomes metrics.abandoned.other.jsonl or .h5
//   metrics.h5                the rows as columns of equal length: /train/{step,loss,...},
//                             /eval/NAME/{step,...}, /start/...; NaN if not measured, attributes
//                             unit and doc, "~" for "/" in names. Attributes of
//                             /provenance/ATTEMPT: what the attempt ran with
//
// Each start reads the rows of both files (metric_history.hpp). If a file is removed, replaced or
// cut while the job writes, the next flush notices it and writes the file again.
//
// A group of more than 131,072 rows is long. metrics.h5 then holds each of its columns in one
// piece, and the rows are no longer kept in memory (stored_rows.hpp). A start reads none of the
// lines whose rows are there; it notices a change of metrics.jsonl if one of 32 evenly spaced
// pieces of the file or of some near its end changed (long_history.hpp). Rows past the restored
// step are cut off in place, and metrics.h5 has them until the first flush.
//
// metrics.h5 is rewritten under a temporary name and renamed, at most once per flush_s and for at
// most 1/200 of the time. HDF5's SWMR mode is not an alternative: while a writer has such a file
// open, or after a writer was killed, a plain h5py.File(path) refuses it. Network file systems do
// not give SWMR the write order it needs either. A renamed file can always be read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/waiting.hpp"
#include "records/log_options.hpp"
#include "records/long_history.hpp"
#include "records/metric_history.hpp"
#include "records/stored_rows.hpp"

namespace io {
class H5File;
}

namespace records {

class Abandoned;
class LongFile;

// The training loop's own metrics have a row in one of these lists; models and evaluators declare
// theirs. NAME also covers NAME followed by digits, and NAME[anything].
struct MetricInfo {
  std::string name, unit, doc;
};
const std::vector<MetricInfo>& train_metrics();
const std::vector<MetricInfo>& eval_metrics();
const MetricInfo* find_metric(const std::vector<MetricInfo>& list,
                              const std::string& name);  // nullptr if there is none

// The metrics that models and evaluators declare, by group of rows: kTrainRows, eval_rows(NAME).
using DeclaredMetrics = std::map<std::string, std::vector<MetricInfo>>;

class Metrics {
 public:
  using Row = MetricValues;

  // Moves the rows after the step that the run continues from (0: from the beginning), and lines
  // that are not rows, to the abandoned files. `attempt` counts starts; the larger number of the
  // argument and the files wins. With `writes` = false (all ranks but 0) every call does nothing.
  // `killed`: the attempt before was killed. `about`: further values of the start row.
  Metrics(const std::string& directory, int64_t restored_step, int64_t attempt, bool writes,
          const LogOptions& options, bool killed = false, DeclaredMetrics declared = {},
          const Row& about = {});
  ~Metrics();

  // The names must be declared by the model or in train_metrics().
  void train_row(int64_t step, const Row& values);
  void eval_row(const std::string& evaluator, int64_t step, const Row& values);
  // A row about tensors (tensor_rows.hpp).
  void tensor_row(const std::string& group, int64_t step, const Row& values);
  // Calls `listener` for every row from now on, on the rank that writes.
  using Listener = std::function<void(const std::string& group, int64_t step, const Row& values)>;
  void tell_rows(Listener listener) { listener_ = std::move(listener); }
  void set_text(const std::string& name, const std::string& text);  // root attribute of metrics.h5
  // Sets what an attempt ran with: the attributes of /provenance/ATTEMPT in metrics.h5.
  void set_facts(int64_t attempt, const std::map<std::string, std::string>& facts);
  // When it returns, metrics.jsonl is on disk; metrics.h5 follows if that is cheap enough. `look`
  // throws if another job has taken the directory. It is called first, and again before a
  // metrics.h5 that another job wrote is replaced.
  void flush(const std::function<void()>& look = [] {});
  bool flush_due() const;  // flush_s after the last flush
  // Writes nothing from now on: the directory belongs to another job.
  void let_go() {
    writes_ = false;
    jsonl_.forget();
  }
  int64_t attempt() const { return attempt_; }
  bool has_eval(const std::string& evaluator, int64_t step) const;
  // Returns the seconds that earlier attempts spent after `attempt` had been up for `uptime_s`, as
  // far as rows show.
  double lost_s(int64_t attempt, double uptime_s) const;

 private:
  // metrics.h5
  struct Columns {
    std::map<std::string, std::string> texts;                     // root attributes
    std::map<int64_t, std::map<std::string, std::string>> facts;  // by attempt
    bool stale = true;                                            // the file lacks rows
    std::optional<io::FileId> file;    // the file as this job wrote it last
    double written_s = 0, cost_s = 0;  // clock after the last write, and its seconds
  };
  // Returns nullptr if there is none.
  const MetricInfo* find_declared(const std::string& group, const std::string& name) const;
  void load(int64_t restored_step);
  void load_long(LongHistory history, int64_t restored_step, Abandoned& abandoned);
  void tell_of_load(int64_t restored_step, int64_t moved,
                    const std::vector<MetricHistory::NoRow>& no_rows) const;
  void warn_of_gap(int64_t restored_step) const;
  void note_uptime(const MetricRow& row, int64_t attempt);
  void append(const std::string& line);
  void add(const std::string& group, int64_t step, const Row& values);
  void put(const std::string& group, int64_t step, const Row& values, bool unique);
  void describe(io::H5File& file, const std::string& group, const std::string& name) const;
  int64_t metadata_bytes(const LongFile& longs) const;
  void write_h5();
  void mend_jsonl();
  bool h5_is_ours() const;

  std::string directory_;
  DeclaredMetrics declared_;
  bool writes_;
  Listener listener_;
  double flush_s_;
  int64_t attempt_;
  StoredRows stored_;       // rows of long groups that are in metrics.h5
  MetricGroups groups_;     // all other rows
  io::WaitingLines jsonl_;  // metrics.jsonl
  Columns h5_;
  std::map<int64_t, double> last_uptime_s_;  // by attempt
  double flushed_s_ = 0;
};

}  // namespace records
