// SPDX-License-Identifier: Apache-2.0
#include "data/sources/source.hpp"

#include "base/error.hpp"

namespace data {

Value Source::field(int64_t index, const std::string& name) const {
  Sample sample = read(index);
  const auto found = sample.find(name);
  CHECK(found != sample.end(), "the source has no field '{}'", name);
  return std::move(found->second);
}

}  // namespace data
