// SPDX-License-Identifier: Apache-2.0
// A part of a source: [data.NAME] limit, skip and limit_seed.
#pragma once

#include <cstdint>
#include <memory>

#include "data/sources/source.hpp"

namespace data {

// Returns the samples at [skip, skip + limit) of an order drawn from `seed`. Parts of one source
// with one seed and disjoint ranges share no sample. A part keeps the source's order, so that
// shards are read sequentially. limit 0: all that remain. Throws Error(Exit::data) if the source
// has too few samples.
std::unique_ptr<Source> subset_of(std::unique_ptr<Source> source, int64_t limit, int64_t skip,
                                  uint64_t seed);

}  // namespace data
