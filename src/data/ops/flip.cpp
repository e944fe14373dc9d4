// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/error.hpp"
#include "data/ops/views.hpp"

namespace data {
namespace {

void mirror_rows(uint8_t* data, int64_t rows, int64_t width, int64_t pixel) {
  for (int64_t y = 0; y < rows; ++y) {
    uint8_t* row = data + y * width * pixel;
    for (int64_t x = 0; x < width / 2; ++x)
      std::swap_ranges(row + x * pixel, row + (x + 1) * pixel, row + (width - 1 - x) * pixel);
  }
}

// Mirrors images of any kind of pixels, each view by itself.
class Flip : public Op {
 public:
  explicit Flip(const Arguments& a) : keys_(keys_of(a)), p_(a, "p") {}

  Spec propagate(Spec spec) const override {
    p_.check_views(count_views(spec, keys_.in));
    for (const std::string& field : view_fields(spec, keys_.in)) {
      FieldSpec one = field_of(spec, field);
      const FieldSpec in = one;
      if (one.shape.size() == 4) one.shape.erase(one.shape.begin());
      image_of({{field, one}}, field);
      spec[written_field(keys_, field)] = in;
    }
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    int64_t first = 0;
    for (const std::string& field : view_fields(sample, keys_.in)) {
      Array out =
          keys_.in == keys_.out ? std::move(array_of(sample, field)) : array_of(sample, field);
      const bool views = out.shape.size() == 4;
      if (!views) check_image(out);
      const int64_t count = views ? out.shape[0] : 1;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t view = views ? first + i : kNoView;
        Draws draw = draws_of(context, view);
        if (p_.draw(view, draw)) mirror(out, views ? i : 0);
      }
      first += count;
      sample[written_field(keys_, field)] = std::move(out);
    }
  }

 private:
  static void mirror(Array& array, int64_t number) {
    const size_t rank = array.shape.size();
    const int64_t height = array.shape[rank - 3], width = array.shape[rank - 2],
                  pixel = array.shape[rank - 1] * device::size_of(array.type);
    uint8_t* data = array.bytes.data() + number * height * width * pixel;
    if (pixel == 3)
      pillow::mirror({data, height, width});
    else
      mirror_rows(data, height, width, pixel);
  }
  Keys keys_;
  Probability p_;
};

}  // namespace

OpRow flip_lr_row() {
  std::vector<Parameter> parameters = key_parameters("image", "image");
  parameters.push_back(Probability::parameter("p", "0.5"));
  return {"flip_lr", "mirrored left to right with probability p", std::move(parameters),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Flip>(a);
          }};
}

}  // namespace data
