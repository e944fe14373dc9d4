// SPDX-License-Identifier: Apache-2.0
#include "data/sources/subset.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/permutation.hpp"
#include "base/random.hpp"
#include "base/text.hpp"

namespace data {
namespace {

// The places [begin, end) of a part among `all` samples. what: "the source" or a class.
struct Places {
  int64_t begin = 0, end = 0;
  Places(const Part& part, int64_t all, const std::string& what) {
    auto of = [all](double fraction) {
      return std::min(all, int64_t(std::floor(fraction * double(all) + 0.5)));
    };
    begin = part.skip_fraction > 0 ? of(part.skip_fraction) : part.skip;
    end = part.fraction > 0 ? of(part.skip_fraction + part.fraction)
          : part.limit > 0  ? begin + part.limit
                            : all;
    const bool exact = part.fraction == 0 && part.skip_fraction == 0;
    if (exact && (begin >= end || end > all))
      base::fail(base::Exit::data, "limit = {}, skip = {}: {} has {} samples; lower limit or skip",
                 base::with_commas(part.limit), base::with_commas(part.skip), what,
                 base::with_commas(all));
  }
  bool has(int64_t place) const { return place >= begin && place < end; }
};

std::vector<int64_t> drawn(const Part& part, int64_t all) {
  std::vector<int64_t> indices;
  const Places places(part, all, "the source");
  const base::Permutation order(all);
  const base::Stream stream(uint64_t(part.seed), "data.subset");
  for (int64_t i = places.begin; i < places.end; ++i) indices.push_back(order.at(i, stream));
  return indices;
}

std::vector<int64_t> drawn_by_class(const Part& part, const Classes& classes) {
  std::vector<Places> places;
  for (int64_t c = 0; c < classes.count(); ++c)
    places.emplace_back(part, classes.sizes[size_t(c)],
                        fmt::format("class '{}'", base::one_line(classes.names[size_t(c)])));
  std::vector<int64_t> indices, seen(places.size(), 0);
  const int64_t all = int64_t(classes.of_sample.size());
  const base::Permutation order(all);
  const base::Stream stream(uint64_t(part.seed), "data.subset");
  for (int64_t i = 0; i < all; ++i) {
    const int64_t sample = order.at(i, stream);
    const size_t c = size_t(classes.of_sample[size_t(sample)]);
    if (places[c].has(seen[c]++)) indices.push_back(sample);
  }
  return indices;
}

class Subset : public Source {
 public:
  Subset(std::unique_ptr<Source> source, std::vector<int64_t> indices)
      : source_(std::move(source)), indices_(std::move(indices)) {
    if (indices_.empty())
      base::fail(base::Exit::data, "fraction leaves none of {} samples; raise it",
                 base::with_commas(source_->size()));
    std::sort(indices_.begin(), indices_.end());
  }

  int64_t size() const override { return int64_t(indices_.size()); }
  Sample read(int64_t index) const override { return source_->read(at(index)); }
  Value field(int64_t index, const std::string& name) const override {
    return source_->field(at(index), name);
  }
  std::string key(int64_t index) const override { return source_->key(at(index)); }
  std::string summary() const override {
    return fmt::format("{} of {} samples of {}", base::with_commas(size()),
                       base::with_commas(source_->size()), source_->summary());
  }
  uint64_t fingerprint() const override {
    Fingerprint print;
    print.add(int64_t(source_->fingerprint()));
    for (int64_t i : indices_) print.add(i);
    return print.value();
  }

 private:
  int64_t at(int64_t index) const {
    CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    return indices_[size_t(index)];
  }
  std::unique_ptr<Source> source_;
  std::vector<int64_t> indices_;
};

}  // namespace

std::unique_ptr<Source> subset_of(std::unique_ptr<Source> source, const Part& part,
                                  const std::function<Classes(const Source&)>& classes) {
  if (part.whole()) return source;
  std::vector<int64_t> indices =
      part.per_class ? drawn_by_class(part, classes(*source)) : drawn(part, source->size());
  return std::make_unique<Subset>(std::move(source), std::move(indices));
}

}  // namespace data
