// SPDX-License-Identifier: Apache-2.0
// Where samples come from: a source answers how many there are and reads any one of them; order,
// resuming and sharding are the business of others. Registry of kinds: registry.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/registry.hpp"
#include "config/table.hpp"
#include "data/array.hpp"

namespace data {

// One member of a sample: an image file, a text, a row. A larger one is taken for an attack or a
// mistake, and refused before memory is taken.
constexpr int64_t kMostMemberBytes = int64_t{256} << 20;

class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  // Any thread, any order. Error(Exit::data) when the sample cannot be read; the caller adds
  // key(index).
  virtual Sample read(int64_t index) const = 0;
  virtual std::string key(int64_t index) const = 0;  // for messages: "shards/train-000.tar:000123"
  virtual std::string summary() const = 0;           // for the log: "83 tars"
  // Tells sets apart that are not the same, so that ranks which read different copies notice. Reads
  // next to no samples; as written here, a hash of all keys.
  virtual uint64_t fingerprint() const;
};

// Hashes numbers and texts of any count in order, through one small buffer.
class Fingerprint {
 public:
  Fingerprint& add(std::string_view text);  // its length too
  Fingerprint& add(int64_t number);
  uint64_t value();

 private:
  void fold();
  std::string buffer_;
  uint64_t sofar_ = 0;
};

// Values are in [0, below), as the deck's `key` says ("model.vocab_size").
struct ValueLimit {
  int64_t below = 0;
  std::string key;
};

// What opening a source may use beyond its own options.
struct OpenContext {
  uint64_t seed = 0;
  int threads = 1;                 // for one-time work such as indexing
  std::string index_dir = {};      // where indexes go; "" = beside the data
  std::string run_index_dir = {};  // where they go if that cannot be written; "" = nowhere
  bool write_index = true;         // false: look only, create no file
  // what single samples lack is found when they are read, not an error of opening
  bool substitutes = false;
  // of i32 fields; samples with other values are bad ones
  std::map<std::string, ValueLimit> limits = {};
  // whose scaling is left to the model (Pipeline::leave_bytes); "" = none
  std::string bytes_field = {};
  // node-local copies of SourceOptions::files() are here; "" = read in place
  std::string stage_dir = {};
  std::stop_token token = {};  // may ask to give up opening (base/cancel.hpp)

  // Where to read a file from: its staged copy if there are any. Names in messages stay those of
  // the originals.
  std::string local(const std::string& path) const;
};

// The keys of one kind of source in [data.NAME].
struct SourceOptions : config::Table::Variant {
  // Without reading samples. Error(Exit::data) where a file must be looked at and cannot be.
  virtual Spec spec() const = 0;
  virtual std::unique_ptr<Source> open(const OpenContext& context) const = 0;
  // The files whose staged copies are read by context.local(path); none: a source that reads no
  // file.
  virtual std::vector<std::string> files() const { return {}; }
  // The key that names them, for messages.
  virtual std::string files_key() const { return "path"; }
};

struct SourceRow {
  std::string name, doc;
  std::shared_ptr<SourceOptions> (*make_options)();
};
const base::Registry<SourceRow>& source_rows();

}  // namespace data
