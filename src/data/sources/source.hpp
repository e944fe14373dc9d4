// SPDX-License-Identifier: Apache-2.0
// Sources of samples. A source knows its number of samples and reads any one of them; order,
// resuming and sharding belong to other classes. Registry of kinds: registry.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "base/registry.hpp"
#include "config/table.hpp"
#include "data/array.hpp"

namespace data {

// Limit of one member of a sample: an image file, a text, a row. A larger member counts as an
// attack or a mistake and is refused before memory is allocated.
constexpr int64_t kMostMemberBytes = int64_t{256} << 20;

class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  // Any thread may call it, in any order. Throws Error(Exit::data) if the sample cannot be read;
  // the caller adds key(index).
  virtual Sample read(int64_t index) const = 0;
  // Returns one field of the sample, without reading the others where the source can do that.
  virtual Value field(int64_t index, const std::string& name) const;
  // Calls each(value) with one field of samples [begin, end), in order, until it returns false.
  // A source that can read it without the other fields may be faster than with field().
  using EachValue = std::function<bool(const Value&)>;
  virtual void fields(int64_t begin, int64_t end, const std::string& name,
                      const EachValue& each) const;
  virtual std::string key(int64_t index) const = 0;  // for messages: "shards/train-000.tar:000123"
  virtual std::string summary() const = 0;           // for the log: "83 tars"
  // Returns a number that differs between different sets, so that ranks which read different copies
  // notice. Reads next to no samples. The default is a hash of all keys.
  virtual uint64_t fingerprint() const;
  // Returns what fingerprint() returned when checkpoints of earlier versions stored it. May read as
  // much as there are samples.
  virtual uint64_t earlier_fingerprint() const { return fingerprint(); }
  // Returns the folder of the samples' files, or "". Files about all samples may be kept there.
  virtual std::string folder() const { return ""; }
  // Tells apart what files keep of one field: a name of the samples, and a number that changes when
  // one of the samples' files changes.
  struct Origin {
    std::string name;
    uint64_t state = 0;
  };
  // Returns nothing for a source whose field costs little, or whose files are not watched.
  virtual std::optional<Origin> origin(const std::string& /*field*/) const { return std::nullopt; }
};

// Hashes any count of numbers and texts in order, through one small buffer.
class Fingerprint {
 public:
  Fingerprint& add(std::string_view text);  // adds the length, too
  Fingerprint& add(int64_t number);
  Fingerprint& add(std::span<const int64_t> numbers);  // as one after the other
  uint64_t value();

 private:
  void fold();
  std::string buffer_;
  uint64_t sofar_ = 0;
};

// The values are in [0, below); the deck's `key` sets the limit ("model.vocab_size").
struct ValueLimit {
  int64_t below = 0;
  std::string key;
};

// Inputs for opening a source besides its own options.
struct OpenContext {
  uint64_t seed = 0;
  int threads = 1;                           // for one-time work such as indexing
  std::string index_dir = {};                // folder of indexes; "" = beside the data
  std::string run_index_dir = {};            // used if that folder cannot be written; "" = none
  bool write_index = true;                   // false: create no file
  int64_t index_bytes = int64_t{512} << 20;  // most bytes of indexes that stay mapped
  // True: a sample that lacks a member fails when it is read, not when the source is opened.
  bool substitutes = false;
  // Limits of i32 fields; samples with other values are bad samples.
  std::map<std::string, ValueLimit> limits = {};
  // The fields whose scaling is left to the model (Pipeline::leave_bytes).
  std::vector<std::string> bytes_fields = {};
  // The folder of node-local copies of SourceOptions::files(); "" = read in place.
  std::string stage_dir = {};
  // By set of files: the texts that ranks have made of their shares
  // (SourceOptions::list_share).
  std::map<std::string, std::vector<std::string>> shares = {};
  std::stop_token token = {};  // may request to give up opening (base/cancel.hpp)

  // Returns the path to read a file from: its staged copy if there are copies. Messages name the
  // originals.
  std::string local(const std::string& path) const;
};

// The keys of one kind of source in [data.NAME].
struct SourceOptions : config::Table::Variant {
  // Computed without reading samples. Throws Error(Exit::data) if a file that must be inspected
  // cannot be.
  virtual Spec spec() const = 0;
  virtual std::unique_ptr<Source> open(const OpenContext& context) const = 0;
  // Returns the files that are read through context.local(path) and can therefore be staged. Empty
  // for a source that reads no file.
  virtual std::vector<std::string> files() const { return {}; }
  // A source of very many files opens faster if each rank first finds out what it can of its share
  // of them. lacks_list: returns what the shares are called in OpenContext::shares, or "" if that
  // is not needed. list_share: returns the share of this rank, or "" if the ranks cannot share.
  virtual std::string lacks_list(const OpenContext&) const { return ""; }
  virtual std::string list_share(const OpenContext&, int /*rank*/, int /*ranks*/) const {
    return "";
  }
  // Returns the key that names these files, for messages.
  virtual std::string files_key() const { return "path"; }
};

struct SourceRow {
  std::string name, doc;
  std::shared_ptr<SourceOptions> (*make_options)();
};
const base::Registry<SourceRow>& source_rows();

}  // namespace data
