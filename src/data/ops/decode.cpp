// SPDX-License-Identifier: Apache-2.0
#include "data/images/decode.hpp"

#include "base/error.hpp"
#include "data/ops/op.hpp"

namespace data {
namespace {

class Decode : public Op {
 public:
  explicit Decode(const Arguments& a) : keys_(keys_of(a)), precise_(a.flag("precise")) {
    if (a.integer("channels") != 3) a.fail("channels", "images are decoded to 3 channels, RGB");
  }

  Spec propagate(Spec spec) const override {
    const FieldSpec& in = field_of(spec, keys_.in);
    if (in.kind != FieldSpec::Kind::bytes)
      base::fail(base::Exit::config, "field '{}' is {}, not an encoded image", keys_.in,
                 text_of(in));
    spec[keys_.out] = FieldSpec::array(device::DType::u8, {-1, -1, 3});
    return spec;
  }

  void apply(Sample& sample, const OpContext& context) const override {
    const Bytes* file = std::get_if<Bytes>(&value_of(sample, keys_.in));
    if (!file) base::fail(base::Exit::data, "field '{}' is not an encoded image", keys_.in);
    Array image = decode_image(*file, precise_);
    if (context.trace) context.trace->images[keys_.out] = {image.shape[0], image.shape[1]};
    sample[keys_.out] = std::move(image);
  }

 private:
  Keys keys_;
  bool precise_;
};

}  // namespace

OpRow decode_row() {
  std::vector<Parameter> parameters{{"channels", Parameter::Type::integer, "3",
                                     "3: red, green, blue; grey is spread, alpha dropped"},
                                    {"precise", Parameter::Type::flag, "False",
                                     "JPEG: accurate transform instead of the fast one"}};
  for (Parameter& p : key_parameters("image", "image")) parameters.push_back(std::move(p));
  return {"decode", "JPEG, PNG, WebP or GIF file -> u8 [height, width, 3]", std::move(parameters),
          [](const Arguments& a, const OpEnvironment&) -> std::unique_ptr<Op> {
            return std::make_unique<Decode>(a);
          }};
}

}  // namespace data
