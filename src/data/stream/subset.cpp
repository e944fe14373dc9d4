// SPDX-License-Identifier: Apache-2.0
#include "data/stream/subset.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/text.hpp"
#include "data/stream/permutation.hpp"

namespace data {
namespace {

class Subset : public Source {
 public:
  Subset(std::unique_ptr<Source> source, int64_t limit, int64_t skip, uint64_t seed)
      : source_(std::move(source)) {
    int64_t all = source_->size(), count = limit == 0 ? all - skip : limit;
    if (count < 1 || count > all - skip)
      base::fail(base::Exit::data, "limit = {}, skip = {}: the source has {} samples",
                 base::with_commas(limit), base::with_commas(skip), base::with_commas(all));
    Permutation order(all);
    base::Stream stream(seed, "data.subset");
    indices_.reserve(size_t(count));
    for (int64_t i = 0; i < count; ++i) indices_.push_back(order.at(skip + i, stream));
    std::sort(indices_.begin(), indices_.end());
  }

  int64_t size() const override { return int64_t(indices_.size()); }
  Sample read(int64_t index) const override { return source_->read(at(index)); }
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

std::unique_ptr<Source> subset_of(std::unique_ptr<Source> source, int64_t limit, int64_t skip,
                                  uint64_t seed) {
  if (limit == 0 && skip == 0) return source;
  return std::make_unique<Subset>(std::move(source), limit, skip, seed);
}

}  // namespace data
