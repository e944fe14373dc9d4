// SPDX-License-Identifier: Apache-2.0
// The journal of an evaluation: results of examples in files, so that an evaluation that was cut
// off goes on where it was, on any number of ranks and with any batch size. Each rank appends one
// record per batch to its own file. The next attempt takes over the examples in front of the first
// one without a record. At most the last batch of each rank is lost with the process; without a
// sync more may be lost with the machine.
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
  // The names and values of what results depend on: {"weights", "81c1..."}. A journal whose
  // identity differs is removed.
  using Identity = std::vector<std::pair<std::string, std::string>>;
  static std::string text_of(const Identity& identity);  // lines NAME=VALUE
  // Gets the bytes that add() got for the example at this position.
  using Take = std::function<void(int64_t position, std::string_view bytes)>;

  // Reads the files of the folder, and makes it. All ranks call. `label` names the evaluation in
  // the log. A folder that cannot be used gives a warning, and nothing is kept.
  Journal(comm::Comm& world, std::string folder, std::string label, const Identity& identity);

  // Begins a stage, which is one way through a number of examples. `stage` names the examples for
  // the log, "images". Returns how many of them need no work: those at positions [0, n). Each rank
  // gets some of them, in the order of positions, and together the ranks get each once. All ranks
  // call.
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
  // Ends the journal, whose folder stays. Returns false if a rank could not keep it. All ranks
  // call.
  bool finish();

 private:
  struct Entry {
    int64_t position = 0, offset = 0, bytes = 0;
    size_t file = 0;
  };
  std::string find(const std::string& identity);
  std::string read_file(size_t file, const std::string& identity);
  void index(size_t file, int64_t offset, std::string_view payload);
  void agree(const std::vector<std::string>& found);
  void open(const std::string& identity);
  void fail(const std::string& problem);

  comm::Comm& world_;
  std::string folder_, label_;
  std::vector<std::string> names_;                    // of the files found
  std::map<std::string, std::vector<Entry>> stages_;  // by position, each once
  std::map<std::string, int64_t> complete_;           // agreed length of each stage's beginning
  int64_t own_bytes_ = 0;                             // valid bytes of this rank's file
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
