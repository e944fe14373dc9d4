// SPDX-License-Identifier: Apache-2.0
// Images and tokens of a pass: what a trunk reads, and what it gives to poolings and decoders.
//
// An example has views, in groups of one image size each. Everything is example-major: images of a
// group are [examples, views of the group, height, width, 3], its tokens [examples, views, tokens
// of an image, width]. So a slice of examples is contiguous rows everywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/context.hpp"

namespace models {

using device::View;

// The views of one size of all examples of a pass.
struct ImageGroup {
  View images{};            // [examples, per_example, height, width, 3]: f32, or u8 (take_bytes)
  int64_t per_example = 1;  // views of an example
  int64_t height = 0, width = 0;
};

// The tokens of an image: a grid in rows, and perhaps a class token and others in front of it.
struct TokenGrid {
  int64_t height = 0, width = 0;
  int64_t front = 0;
  int64_t count() const { return front + height * width; }
};

// The tokens of all images of a pass, or their gradient.
struct Tokens {
  struct Group {
    int64_t per_example = 1;  // views of an example
    TokenGrid grid{};         // of an image
    View values{};            // [examples, per_example, grid.count(), width]; none if packed
  };
  std::vector<Group> groups;  // in the order of the image groups
  // A trunk may pack images of several sizes: the tokens of all images, [tokens, width], image by
  // image, with the images of group 0 first in each example. Else none.
  View packed{};
  // i32 [images]: the row of each image's class token, or of the token that stands for it, if any
  View class_rows{};

  int64_t views() const {  // of an example
    int64_t n = 0;
    for (const Group& g : groups) n += g.per_example;
    return n;
  }
  // Returns the values of a pass whose images have one size.
  View of_one_size() const {
    CHECK(groups.size() == 1, "images of {} sizes", groups.size());
    return groups.front().values;
  }
};

// Returns a context in which every view is an example.
inline nn::Context of_images(const nn::Context& ctx, int64_t views) {
  nn::Context of = ctx;
  of.batch *= views;
  of.first_example *= views;
  return of;
}

}  // namespace models
