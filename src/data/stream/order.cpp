// SPDX-License-Identifier: Apache-2.0
#include "data/stream/order.hpp"

#include <algorithm>

#include "base/elementary.hpp"
#include "base/error.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"

namespace data {

namespace {
base::Stream stream_of(uint64_t seed, std::string_view name) {
  return {seed, name.empty() ? std::string("data.order") : fmt::format("data.order/{}", name)};
}
}  // namespace

Order::Order(Shuffle shuffle, int64_t size, uint64_t seed, BlockShape shape, std::string_view name)
    : shuffle_(shuffle), size_(size), stream_(stream_of(seed, name)), shape_(shape) {
  CHECK(size > 0, "an order of {} samples", size);
  CHECK(shuffle != Shuffle::classes && shuffle != Shuffle::stratified,
        "an order by class without classes");
  if (shuffle != Shuffle::blocks) {
    all_ = base::Permutation(size);
    return;
  }
  CHECK(shape.block > 0 && shape.window > 0, "blocks of {} samples, windows of {} blocks",
        shape.block, shape.window);
  shape_.block = std::min(shape.block, size);
  int64_t blocks = base::ceil_div(size, shape_.block);
  shape_.window = std::min(shape.window, blocks);
  all_ = base::Permutation(blocks);
}

Order::Order(std::shared_ptr<const Classes> classes, double power, uint64_t seed,
             std::string_view name)
    : shuffle_(Shuffle::classes), size_(classes->samples()), stream_(stream_of(seed, name)) {
  CHECK(size_ > 0, "an order of {} samples", size_);
  ByClass by_class{.classes = std::move(classes), .up_to = {}};
  double sum = 0;
  for (int64_t n : by_class.classes->sizes()) {
    sum += base::math::pow(double(n), 1 - power);
    by_class.up_to.push_back(sum);
  }
  for (double& p : by_class.up_to) p /= sum;
  by_class_ = std::make_shared<ByClass>(std::move(by_class));
}

Order::Order(std::shared_ptr<const Classes> classes, Strata strata, uint64_t seed)
    : shuffle_(Shuffle::stratified),
      size_(classes->samples()),
      stream_(stream_of(seed, "")),
      all_(classes->count()) {
  CHECK(strata.classes > 0 && strata.batch > 0 && strata.batch % strata.classes == 0,
        "batches of {} with {} classes", strata.batch, strata.classes);
  if (classes->count() < strata.classes)
    base::fail(base::Exit::config,
               "train.classes_per_batch = {}, but the data have only {} classes: lower the key",
               strata.classes, classes->count());
  const int64_t each = strata.batch / strata.classes;
  for (int64_t c = 0; c < classes->count(); ++c)
    if (classes->sizes()[size_t(c)] < each)
      base::fail(
          base::Exit::data,
          "class {} has {} samples, and a batch of {} with {} classes needs {} of each class: "
          "raise train.classes_per_batch, lower train.global_batch, or leave the class out",
          base::quoted(classes->names()[size_t(c)]), classes->sizes()[size_t(c)], strata.batch,
          strata.classes, each);
  by_class_ = std::make_shared<ByClass>(
      ByClass{.classes = std::move(classes), .up_to = {}, .strata = strata});
}

int64_t Order::index_in_strata(int64_t position) const {
  const Strata& strata = by_class_->strata;
  const int64_t each = strata.batch / strata.classes, batch = position / strata.batch,
                slot = position % strata.batch, batches = all_.size() / strata.classes,
                round = batch / batches;
  const base::Stream of_round = stream_.sub(uint64_t(round));
  const int64_t c =
      all_.at(batch % batches * strata.classes + slot % strata.classes, of_round.sub(0));
  const int64_t n = by_class_->classes->sizes()[size_t(c)], groups = n / each;
  const base::Stream of_class = stream_.sub(uint64_t(round / groups)).sub(uint64_t(c) + 1);
  return by_class_->classes->sample(
      uint32_t(c),
      base::Permutation(n).at(round % groups * each + slot / strata.classes, of_class));
}

int64_t Order::index_by_class(const base::Stream& draws) const {
  const ByClass& all = *by_class_;
  const auto found = std::upper_bound(all.up_to.begin(), all.up_to.end() - 1, draws.uniform64(0));
  const size_t c = size_t(found - all.up_to.begin());
  return all.classes->sample(uint32_t(c),
                             int64_t(draws.uniform64(1) * double(all.classes->sizes()[c])));
}

int64_t Order::index(int64_t position) const {
  CHECK(position >= 0, "position {}", position);
  int64_t within = position % size_;
  if (shuffle_ == Shuffle::none) return within;
  if (shuffle_ == Shuffle::stratified) return index_in_strata(position);
  base::Stream epoch = stream_.sub(uint64_t(position / size_));
  if (by_class_) return index_by_class(epoch.sub(uint64_t(within)));
  return shuffle_ == Shuffle::exact ? all_.at(within, epoch) : index_in_blocks(within, epoch);
}

// A "place" is the position of a block in this epoch's order of blocks. All blocks have the same
// length, except that the set's last block may be shorter. That block may have any place; the
// samples after it come earlier by the number that it lacks.
int64_t Order::index_in_blocks(int64_t within, const base::Stream& epoch) const {
  int64_t block = shape_.block, blocks = all_.size(), span = block * shape_.window;
  int64_t lacks = blocks * block - size_;
  base::Stream block_order = epoch.sub(0);
  int64_t short_place = all_.place_of(blocks - 1, block_order);
  int64_t short_window = short_place / shape_.window;

  // Returns the number of samples before a window.
  auto before_window = [&](int64_t w) {
    return std::min(w * span, blocks * block) - (w > short_window ? lacks : 0);
  };
  int64_t window = within / span;
  if (window >= short_window && within >= before_window(short_window + 1))
    window = (within + lacks) / span;
  int64_t begin = before_window(window), count = before_window(window + 1) - begin;

  int64_t mixed = base::Permutation(count).at(within - begin, epoch.sub(uint64_t(window) + 1));
  // Offset of the short block within this window, if the window has it.
  int64_t short_begin = (short_place - window * shape_.window) * block;
  if (window == short_window && mixed >= short_begin + block - lacks) mixed += lacks;
  int64_t place = window * shape_.window + mixed / block;
  return all_.at(place, block_order) * block + mixed % block;
}

}  // namespace data
