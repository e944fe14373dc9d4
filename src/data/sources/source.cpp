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

void Source::fields(int64_t begin, int64_t end, const std::string& name,
                    const EachValue& each) const {
  for (int64_t i = begin; i < end; ++i)
    if (!each(field(i, name))) return;
}

}  // namespace data
