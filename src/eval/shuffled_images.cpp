// SPDX-License-Identifier: Apache-2.0
#include "eval/shuffled_images.hpp"

namespace eval {

void ShuffledImages::bind(config::Table& t) {
  t.key("shuffle_images", on,
        "give each caption another image (a fixed rotation), to show what the image is worth")
      .on_resume(config::OnResume::may_change);
}

void ShuffledImages::check(const data::Dataset& set) const {
  if (on && set.size() < 2)
    base::fail(base::Exit::data,
               "shuffle_images: [data.{}] holds {} example, so there is no other image to give "
               "it; use a larger set or leave shuffle_images out",
               set.name(), set.size());
}

std::function<int64_t(int64_t)> ShuffledImages::place(int64_t n) const {
  // The rotation is half the set, because neighbours (variants of one picture) must not get each
  // other's images.
  const int64_t shift = on ? n / 2 : 0;
  return [=](int64_t p) { return p < n ? (p + shift) % n : p; };
}

}  // namespace eval
