// SPDX-License-Identifier: Apache-2.0
// An HDF5 file with a row for each sample of a data set, which all ranks write at once. Its
// structure and its length are final before the first row, so a rank only writes bytes at known
// offsets. Until the file is complete it is called PATH.part, and PATH.progress holds the number of
// rows that are on disk. A killed job continues there. The complete file is renamed to PATH.
//
// Equal plans and rows make files of equal bytes, on any number of ranks and after any number of
// continuations.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm.hpp"
#include "comm/worker.hpp"
#include "io/h5.hpp"

namespace records {

using RowAttributes = std::vector<std::pair<std::string, io::H5Attribute>>;

// A dataset with a row for each sample.
struct RowColumn {
  std::string name;                 // "/features/pre_logits"
  io::H5Type type;                  // text: one string per row
  std::vector<int64_t> shape = {};  // of one row; {} = one element
  int64_t text_bytes = 0;           // of a row of type text
  RowAttributes attributes = {};

  int64_t elements() const;  // of one row
  int64_t row_bytes() const;
};

struct RowPlan {
  std::string path;
  std::string key;  // key of the deck that names the path, for messages
  int64_t rows = 0;
  std::vector<RowColumn> columns;
  std::map<std::string, std::vector<std::string>> lists = {};  // further datasets of texts
  RowAttributes attributes = {};                               // of the root group
  // Everything that decides the rows, by key. A file that was begun with other values is neither
  // continued nor replaced. Written as JSON to the dataset /made_from.
  std::map<std::string, std::string> made_from = {};
};

// Values of rows [begin, begin + count) of the file, column after column in the plan's order.
struct RowBlock {
  int64_t begin = 0, count = 0;
  std::vector<std::string> columns;  // bytes [count, row_bytes] each
};

class RowFile {
 public:
  // Makes the file, or opens an unfinished one to continue. All ranks call, and all throw the same
  // Error: Exit::config if the path holds another plan's file, some other file, or a file that
  // another job is writing; Exit::checkpoint if the disk fails. Rank 0 holds a lock until the
  // object is destroyed.
  RowFile(comm::Comm& world, RowPlan plan);

  int64_t done() const { return done_; }  // rows [0, done) are on disk
  bool complete() const { return complete_; }
  int64_t bytes() const { return layout_.bytes; }
  // Writes this rank's rows in another thread. Waits for the rows of the previous call. `end`:
  // with this call and the earlier ones the ranks have given all rows [0, end). All ranks call.
  void write(RowBlock block, int64_t end);
  // Waits until all rows that were given are on disk and recorded. All ranks call.
  void settle();
  // Gives the complete file its name. All ranks call, after the last row.
  void publish();

 private:
  // The offsets of everything in the file.
  struct Layout {
    std::vector<int64_t> columns;
    int64_t bytes = 0;
  };
  // The record of progress. Two slots take turns, so that a torn write leaves the other one.
  struct Progress {
    io::File file;  // rank 0
    int64_t slots_at = 0, writes = 0;
  };
  void begin();
  bool is_complete() const;
  bool resume();
  void create();
  std::string made_from() const;
  std::string differences(const std::string& was) const;
  void record(int64_t rows);
  void wait();
  std::string part() const { return plan_.path + ".part"; }
  std::string progress_path() const { return plan_.path + ".progress"; }

  comm::Comm& world_;
  RowPlan plan_;
  Layout layout_;
  int64_t done_ = 0, given_ = 0;
  bool complete_ = false, busy_ = false;
  io::File file_;
  Progress progress_;
  RowBlock block_;       // what the worker writes
  comm::Worker worker_;  // declared last, so it ends before the members that its work uses
};

}  // namespace records
