// SPDX-License-Identifier: Apache-2.0
// The journal of an evaluation: results of examples in files, so that an interrupted evaluation
// continues where it stopped, on any number of ranks and with any batch size. Each rank appends one
// record per batch to its own file, which has the rank's number as its name. The next attempt
// reuses the examples before the first one without a record: each rank reads and checks its share
// of the files, and all ranks learn the places and hashes of the examples in them. If a process
// dies, at most the last batch of each rank is lost. Files are not synced, so more may be lost if
// the machine fails.
//
// A file is a sequence of records: u64 bytes, u64 XXH3-64 of the payload, payload. The payload of
// the first record is the identity. Further payloads are the name of a stage and its examples:
// i64 length and text, then i64 position, i64 length and bytes of each example. A torn record at
// the end of a file is dropped.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/comm.hpp"
#include "io/files.hpp"

namespace eval {

class Journal {
 public:
  // Names and values that the results depend on: {"weights", "81c1..."}. A journal whose identity
  // differs is removed.
  using Identity = std::vector<std::pair<std::string, std::string>>;
  static std::string text_of(const Identity& identity);  // lines NAME=VALUE
  // Receives the bytes that add() was given for the example at this position.
  using Take = std::function<void(int64_t position, std::string_view bytes)>;

  // Finds the examples in the files of the folder, and makes it. All ranks call. `label` names the
  // evaluation in the log. A folder that cannot be used gives a warning, and nothing is kept.
  Journal(comm::Comm& world, std::string folder, std::string label, const Identity& identity);

  // Begins a stage, which is one loop over a number of examples. `stage` names the examples for the
  // log, "images". Returns n: the examples at positions [0, n) need no work. `take` gets each of
  // them on one rank, in the order of positions. All ranks call.
  int64_t begin(const std::string& stage, int64_t examples, const Take& take);
  // Adds an example of the stage that was begun last to the current record.
  void add(int64_t position, std::string_view bytes);
  template <class T>
  void add(int64_t position, std::span<const T> values) {
    add(position, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }
  // Appends the current record to this rank's file. An error gives a warning, and this rank keeps
  // nothing from then on.
  void write();
  // Ends the journal and leaves its folder. Returns false if a rank could not keep its part. All
  // ranks call.
  bool finish();

 private:
  // The place of an example's bytes, and their hash.
  struct Entry {
    int64_t position = 0, file = 0, offset = 0, bytes = 0;
    uint64_t hash = 0;
  };
  using Entries = std::vector<Entry>;
  std::string path_of(int64_t file) const { return folder_ + "/" + std::to_string(file); }
  std::string find(const std::string& identity);
  std::string read_file(int64_t file, const std::string& identity);
  void index(int64_t file, int64_t offset, std::string_view payload);
  void agree(const std::vector<std::string>& found);
  void merge(std::string_view found);
  int64_t read_share(const Entries& entries, int64_t n, std::vector<std::string>& share) const;
  void open(const std::string& identity);
  void fail(const std::string& problem);

  comm::Comm& world_;
  std::string folder_, label_;
  std::map<std::string, Entries> stages_;  // of all ranks: each position once, from 0 without gaps
  int64_t own_bytes_ = 0;                  // valid bytes of this rank's file
  std::string stage_, record_;
  io::File file_;
  bool failed_ = false;
};

// Copies the bytes of an example back. The number of values is fixed by the evaluator.
template <class T>
void copy_values(std::string_view bytes, std::span<T> to) {
  CHECK(bytes.size() == to.size_bytes(), "an example of {} bytes is read as {}", bytes.size(),
        to.size_bytes());
  bytes.copy(reinterpret_cast<char*>(to.data()), bytes.size());
}

}  // namespace eval
