// SPDX-License-Identifier: Apache-2.0
// A part of a source: [data.NAME] limit, skip and limit_seed.
#pragma once

#include <cstdint>
#include <memory>

#include "data/sources/source.hpp"

namespace data {

// Of the samples in an order drawn from `seed`, those at [skip, skip + limit): parts of one source
// with one seed and other `skip` share no sample. They keep the source's order, so that shards are
// read as they lie. limit 0: all that are left. Error(Exit::data) if the source has fewer samples
// than that.
std::unique_ptr<Source> subset_of(std::unique_ptr<Source> source, int64_t limit, int64_t skip,
                                  uint64_t seed);

}  // namespace data
