// SPDX-License-Identifier: Apache-2.0
// A data set as the rest of the program uses it: a source with its preprocessing, and any sample by
// its number.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "data/ops/pipeline.hpp"
#include "data/options.hpp"
#include "data/sources/classes.hpp"
#include "data/sources/source.hpp"

namespace data {

class Dataset {
 public:
  Dataset(std::string name, std::unique_ptr<Source> source, Pipeline pipeline,
          std::map<std::string, ValueLimit> limits = {});

  const std::string& name() const { return name_; }
  int64_t size() const { return source_->size(); }
  const Spec& spec() const { return pipeline_.spec(); }  // after all ops
  std::string key(int64_t index) const { return source_->key(index); }
  std::string summary() const { return source_->summary(); }
  uint64_t fingerprint() const { return source_->fingerprint(); }
  uint64_t earlier_fingerprint() const { return source_->earlier_fingerprint(); }
  // Calls read_classes for the set's source. `spec`: the source's fields, before any op.
  Classes classes(const Spec& spec, const std::string& field, const OpenContext& context) const;
  // Pipeline::tokenize of the set's ops, for texts that are not samples of the set.
  bool tokenize(const std::string& field, const std::string& text, std::vector<int32_t>& ids,
                int32_t& padding) const {
    return pipeline_.tokenize(field, text, ids, padding);
  }
  // Returns the tokenizer whose ids the field holds; null if no op makes them from text.
  const Tokenizer* tokenizer(const std::string& field) const { return pipeline_.tokenizer(field); }
  // Returns the counts of the ops in this process, samples read ahead included (count_lines.hpp).
  std::map<std::string, int64_t> counts() const { return pipeline_.counts(); }

  // Returns sample `index` after all ops, at `position` of the stream, from which random ops draw.
  // Any thread may call it. Errors name the data set, the sample's key and the op; an error that is
  // the sample's own fault is a BadSampleError. Fields may be stored in `places`, which must then
  // outlive the sample. Ops record their findings in `trace`.
  Sample get(int64_t index, int64_t position, const Places* places = nullptr,
             Trace* trace = nullptr) const;

 private:
  std::string name_;
  std::unique_ptr<Source> source_;
  Pipeline pipeline_;
  std::map<std::string, ValueLimit> limits_;
};

// Opens the source of [data.NAME] and the tokenizers it needs.
std::unique_ptr<Dataset> open_dataset(const Sections& sections, const Tokenizers& tokenizers,
                                      const std::string& name, const OpenContext& context);

}  // namespace data
