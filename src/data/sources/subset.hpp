// SPDX-License-Identifier: Apache-2.0
// A part of a source: [data.NAME] limit, skip, fraction, skip_fraction, limit_per, limit_seed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "data/sources/classes.hpp"
#include "data/sources/source.hpp"

namespace data {

// A part of n samples. `seed` draws an order of them. The part has positions [skip, skip + limit)
// of this order or, with fractions, [skip_fraction n, (skip_fraction + fraction) n), rounded. limit
// 0 and fraction 0: all that remain.
struct Part {
  int64_t limit = 0, skip = 0;
  double fraction = 0, skip_fraction = 0;
  bool per_class = false;  // limit_per: n is the number of samples of each class
  int64_t seed = 0;        // limit_seed

  bool whole() const { return limit == 0 && skip == 0 && fraction == 0 && skip_fraction == 0; }
};

// Returns a part of a source. Parts of one source with one seed and disjoint ranges share no
// sample. A part keeps the source's order, so that shards are read sequentially. `classes` is
// called if the part is per class. Throws Error(Exit::data) if the source, or a class, has too few
// samples for limit and skip. Drawing takes the context's threads and obeys its token. A large part
// is kept in a file of the context's folders.
std::unique_ptr<Source> subset_of(std::unique_ptr<Source> source, const Part& part,
                                  const std::function<Classes(const Source&)>& classes,
                                  const OpenContext& context = {});

}  // namespace data
