// SPDX-License-Identifier: Apache-2.0
// The classes of all samples of a source, for parts that take samples of each class and for orders
// that draw by class.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/occurrences.hpp"
#include "data/sources/source.hpp"

namespace data {

// The classes of consecutive samples.
struct ClassPiece {
  std::vector<std::string> names;  // those that occur here, as text, sorted
  std::vector<int64_t> sizes;      // samples of each of them
  base::Occurrences numbers;       // of each sample: its index in `names`
  uint64_t print = 0;              // a hash of all of it, if it is in a file
};

class Classes {
 public:
  // The pieces must follow each other: each begins where the one before it ends.
  explicit Classes(std::vector<ClassPiece> pieces);

  int64_t count() const { return int64_t(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }  // sorted
  const std::vector<int64_t>& sizes() const { return sizes_; }      // samples of each class
  int64_t samples() const { return begins_.back(); }
  int64_t bytes() const;                     // of the numbers of all samples
  uint32_t of_sample(int64_t sample) const;  // index in names()
  // Returns the k-th sample of a class; k counts from 0.
  int64_t sample(uint32_t number, int64_t k) const;
  // Returns a number that differs between different classes, or 0 for classes that are in no file.
  uint64_t print() const;

 private:
  // A piece that has samples of a class.
  struct Place {
    uint32_t piece = 0, number = 0;  // the class in that piece
    int64_t before = 0;              // samples of the class in pieces before this one
  };
  std::vector<ClassPiece> pieces_;
  std::vector<int64_t> begins_{0};              // first sample of each piece; at the end, all
  std::vector<std::vector<uint32_t>> numbers_;  // by piece and number there: index in names_
  std::vector<std::string> names_;
  std::vector<int64_t> sizes_;
  // Places of all classes, and where those of each class begin.
  std::vector<Place> places_;
  std::vector<size_t> place_begins_;
};

// Samples of a piece that has a file of its own.
inline constexpr int64_t kClassPiece = int64_t{1} << 22;

// Reads one field of every sample before any op, such as a label: a whole number or a text. Sources
// that can read it without the images do so. Of a source with an origin and more than `piece`
// samples, the classes are kept in files. Later starts and the other ranks of a node map these, and
// each rank first reads pieces that other ranks do not. Throws Error(Exit::config) if `spec`, the
// source's fields, lacks the field or gives it another type, and Error(Exit::data) if a sample
// cannot be read.
Classes read_classes(const Source& source, const Spec& spec, const std::string& field,
                     const OpenContext& context, int64_t piece = kClassPiece);

}  // namespace data
