// SPDX-License-Identifier: Apache-2.0
// The deck's [data.*], [tokenizer.*] and [loader] tables.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/table.hpp"
#include "data/array.hpp"
#include "data/bad_sample.hpp"
#include "data/sources/source.hpp"
#include "data/sources/subset.hpp"
#include "data/tokenizers/tokenizer.hpp"

namespace data {

// [data.NAME]
struct DataOptions {
  std::string kind = "webdataset";
  std::shared_ptr<config::Table::Variant> source;  // SourceOptions of that kind
  std::string preprocess;
  Part part;
  std::string class_field = "label";
  void bind(config::Table& t);
  const SourceOptions* source_options() const {
    return dynamic_cast<const SourceOptions*>(source.get());
  }
};

// [tokenizer.NAME]
struct TokenizerOptions {
  std::string kind = "sentencepiece";
  std::shared_ptr<config::Table::Variant> model;  // TokenizerKindOptions of that kind
  void bind(config::Table& t);
};

// [loader]: how samples are read; changes no result as long as no sample is bad.
struct LoaderOptions {
  int64_t threads = 2;
  int64_t prefetch = 4;
  std::string index_dir;
  int64_t index_mb = 512;
  std::string stage_dir;
  bool substitutes = false;  // on_bad_sample
  double max_bad_sample_fraction = 1e-4;
  void bind(config::Table& t);

  // Not a key: the log of replaced samples; nullptr = no log.
  std::shared_ptr<BadSampleLog> log;
};

struct Problem {
  std::string key;  // "data.train.preprocess"
  std::string text;
};

// All these tables together. The root options hold a Sections and call its bind.
struct Sections {
  std::map<std::string, DataOptions> data;
  std::map<std::string, TokenizerOptions> tokenizer;
  LoaderOptions loader;
  void bind(config::Table& root);

  // Returns the preprocessing string of a data set; follows "@other" to its end. Throws
  // Error(Exit::config) for a name that does not exist or leads back to itself.
  std::string preprocess_of(const std::string& name) const;
  // Returns the fields of the data set after all ops, as far as SourceOptions::spec knows them.
  // Throws Error(Exit::config) or Error(Exit::data).
  Spec spec_of(const std::string& name) const;
  // Returns spec_of with the range of ids, which the tokenizers' files give. Throws
  // Error(Exit::data) for a file that cannot be read.
  Spec opened_spec_of(const std::string& name) const;
  // Returns Pipeline::byte_scale of the data set's ops.
  std::optional<ByteScale> byte_scale_of(const std::string& name, const std::string& field) const;
  // Returns every problem that can be found without reading samples. Skips checks that need a file
  // which is missing here.
  std::vector<Problem> problems() const;
  // Returns the named tokenizers, which open on demand.
  Tokenizers tokenizers() const;
};

}  // namespace data
