// SPDX-License-Identifier: Apache-2.0
// Recorded transforms of images: single operations, whole pipelines, the sampler of crops, and
// crops of several sizes. Bytes must be equal.
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "data/images/random_box.hpp"
#include "data/ops/pipeline.hpp"
#include "ssl_case.hpp"
#include "ssl_mix.hpp"

namespace golden {
namespace {

using data::Array;
using data::pillow::Box;
using data::pillow::Image;
using data::pillow::Planes;
using device::DType;

Image image_of(const Array& a) { return {a.view().u8(), a.shape[0], a.shape[1]}; }

Array read_image(const CaseFile& file, const std::string& name) {
  const Shape shape = file.shape(name);
  if (shape.size() != 3 || shape[2] != 3) file.fail(name, "is no image [height, width, 3]");
  Array out(DType::u8, shape);
  const std::vector<uint8_t> bytes = file.bytes(name, shape);
  std::memcpy(out.u8(), bytes.data(), bytes.size());
  return out;
}

template <class F>
Array recoloured(Array a, const F& f) {
  Planes planes(image_of(a));
  f(planes);
  planes.store(image_of(a));
  return a;
}

Array crop_and_resize(const Array& a, const Box& box, int64_t height, int64_t width) {
  Array out(DType::u8, {height, width, 3});
  data::pillow::resize(image_of(a), box, image_of(out));
  return out;
}

// An operation by its recorded name, with one number (or none).
Array apply(const CaseFile& file, const std::string& set, const std::string& name, double x,
            Array a) {
  using namespace data::pillow;
  const float f = float(x);
  if (name == "brightness") return recoloured(a, [&](Planes& p) { brightness(p, f); });
  if (name == "contrast") return recoloured(a, [&](Planes& p) { contrast(p, f); });
  if (name == "saturation") return recoloured(a, [&](Planes& p) { saturation(p, f); });
  if (name == "hue") return recoloured(a, [&](Planes& p) { hue(p, x); });
  if (name == "hsv") return recoloured(a, to_hsv);
  if (name == "grayscale") return recoloured(a, grayscale);
  if (name == "autocontrast") return recoloured(a, autocontrast);
  if (name == "blur")
    gaussian_blur(image_of(a), f);
  else if (name == "solarize")
    solarize(image_of(a), int(x));
  else if (name == "posterize")
    posterize(image_of(a), int(x));
  else if (name == "sharpness")
    sharpness(image_of(a), f);
  else if (name == "mirror")
    mirror(image_of(a));
  else
    file.fail(set, "\"" + name + "\" is not known");
  return a;
}

// Groups with a set for each value of one attribute ("" = none).
const std::map<std::string, std::string> kOperations = {{"brightness", "factor"},
                                                        {"contrast", "factor"},
                                                        {"saturation", "factor"},
                                                        {"hue", "factor"},
                                                        {"hsv", ""},
                                                        {"grayscale", ""},
                                                        {"autocontrast", ""},
                                                        {"blur", "radius"},
                                                        {"solarize", "threshold"},
                                                        {"posterize", "bits"},
                                                        {"sharpness", "factor"}};

// Names of the functions that recorded pipelines called.
const std::map<std::string, std::string> kFunctions = {{"adjust_brightness", "brightness"},
                                                       {"adjust_contrast", "contrast"},
                                                       {"adjust_saturation", "saturation"},
                                                       {"adjust_hue", "hue"},
                                                       {"rgb_to_grayscale", "grayscale"},
                                                       {"gaussian_blur", "blur"},
                                                       {"solarize", "solarize"},
                                                       {"hflip", "mirror"}};

// Replays recorded draws, and notes if the sampler asks for others.
struct RecordedDraws {
  const nlohmann::json& draws;
  size_t next = 0;
  bool as_recorded = true;

  double take(const char* kind, double low, double high) {
    if (next >= draws.size() || draws[next][0] != kind) {
      as_recorded = false;
      return low;
    }
    const nlohmann::json& draw = draws[next++];
    as_recorded = as_recorded && std::abs(draw[1].get<double>() - low) < 1e-6 &&
                  std::abs(draw[2].get<double>() - high) < 1e-6;
    return draw[3].get<double>();
  }
  float uniform(double low, double high) { return float(take("uniform", low, high)); }
  int64_t below(int64_t n) { return int64_t(take("integer", 0, double(n))); }
};

// Finds the box of a crop whose draws are not recorded.
class BoxSearch {
 public:
  BoxSearch(const Array& image, const Array& crop) : image_(image), crop_(crop) {}

  // Returns true if a box with a usual ratio gives exactly these bytes.
  bool found() const {
    const int64_t height = image_.shape[0], width = image_.shape[1];
    for (int64_t h = 1; h <= height; ++h)
      for (int64_t w = 1; w <= width; ++w) {
        const double x = double(w), y = double(h);
        if ((x - 0.5) / (y + 0.5) > 4.0 / 3 || (x + 0.5) / (y - 0.5) < 3.0 / 4) continue;
        const std::vector<double> down = weights(h, crop_.shape[0]),
                                  right = weights(w, crop_.shape[1]);
        for (int64_t top = 0; top + h <= height; ++top)
          for (int64_t left = 0; left + w <= width; ++left)
            if (corner_fits(top, left, down, right) && same(Box{top, left, h, w})) return true;
      }
    return false;
  }

 private:
  // Returns the weights of the first output of an axis.
  static std::vector<double> weights(int64_t in, int64_t out) {
    const double scale = double(in) / double(out), reach = std::max(scale, 1.0);
    std::vector<double> w;
    double sum = 0;
    for (int64_t k = 0; k < std::min(int64_t(scale / 2 + reach + 0.5), in); ++k) {
      w.push_back(std::max(0.0, 1 - std::abs((double(k) - scale / 2 + 0.5) / reach)));
      sum += w.back();
    }
    for (double& x : w) x /= sum;
    return w;
  }
  bool corner_fits(int64_t top, int64_t left, const std::vector<double>& down,
                   const std::vector<double>& right) const {
    double value = 0;
    for (size_t y = 0; y < down.size(); ++y)
      for (size_t x = 0; x < right.size(); ++x)
        value += down[y] * right[x] *
                 image_.u8()[((top + int64_t(y)) * image_.shape[1] + left + int64_t(x)) * 3];
    return std::abs(value - crop_.u8()[0]) < 1.5;  // two roundings
  }
  bool same(const Box& box) const {
    const Array got = crop_and_resize(image_, box, crop_.shape[0], crop_.shape[1]);
    return std::memcmp(got.u8(), crop_.u8(), size_t(got.count())) == 0;
  }
  const Array& image_;
  const Array& crop_;
};

class TransformsCase : public SslCase {
 public:
  TransformsCase(const CaseFile& file, const Settings& settings)
      : file_(file),
        settings_(settings),
        image_(file.has("inputs/image") ? read_image(file, "inputs/image") : Array()) {}

  void run(Report& report) override {
    for (const auto& [group, attribute] : kOperations) run_operation(group, attribute, report);
    for (const std::string& set : file_.below("resized_crop"))
      run_crop("resized_crop/" + set, report);
    for (const std::string& group : file_.groups())
      if (group.starts_with("pipeline"))
        for (const std::string& set : file_.below(group)) run_pipeline(group, set, report);
    for (const std::string& set : file_.below("multicrop")) {
      const Array crop = read_image(file_, "multicrop/" + set);
      report.require("multicrop", set, BoxSearch(image_, crop).found(),
                     "no box of the image gives these bytes");
    }
    if (file_.has("crop_sampler")) run_sampler(report);
    if (file_.has("normalize/image")) run_normalize(report);
    if (holds_mixes(file_)) run_mixes(file_, settings_, report);
  }

 private:
  void compare(const std::string& quantity, const std::string& set, const Array& got,
               Report& report) const {
    const std::vector<uint8_t> want = file_.bytes(set, got.shape);
    report.compare(quantity, set, got.u8(), want.data(), got.count(), 0);
  }
  void run_operation(const std::string& group, const std::string& attribute, Report& report) const {
    for (const std::string& name : file_.below(group)) {
      const std::string set = group + "/" + name;
      const bool low = group == "autocontrast" && file_.has("inputs/image_low");
      const Array in = low ? read_image(file_, "inputs/image_low") : image_;
      const double x = attribute.empty() ? 0 : file_.number(set, attribute);
      Array out = apply(file_, set, group, x, in);
      if (file_.shape(set).size() == 2) {  // one of three equal channels
        Planes planes(image_of(out));
        Array one(DType::u8, {out.shape[0], out.shape[1]});
        std::memcpy(one.u8(), planes.channel(0), size_t(one.count()));
        out = std::move(one);
      }
      compare(group, set, out, report);
    }
  }
  void run_crop(const std::string& set, Report& report) const {
    const std::vector<double> b = file_.numbers(set, "box");
    if (b.size() != 4) file_.fail(set, "its attribute box has not 4 numbers");
    const Box box{int64_t(b[0]), int64_t(b[1]), int64_t(b[2]), int64_t(b[3])};
    const int64_t size = int64_t(file_.number(set, "size"));
    compare("resized_crop", set, crop_and_resize(image_, box, size, size), report);
  }
  void run_pipeline(const std::string& group, const std::string& name, Report& report) const {
    const std::string set = group + "/" + name;
    const Shape shape = file_.shape(set);
    Array x = image_;
    for (const nlohmann::json& call : file_.json(set, "operations")) {
      const std::string function = call.at(0);
      const auto number = [&](size_t i) { return call.size() > i ? call[i].get<double>() : 0; };
      const auto whole = [&](size_t i) { return int64_t(number(i)); };
      if (function == "resized_crop") {
        x = crop_and_resize(x, {whole(1), whole(2), whole(3), whole(4)}, shape.at(0), shape.at(1));
        continue;
      }
      auto known = kFunctions.find(function);
      if (known == kFunctions.end()) file_.fail(set, "\"" + function + "\" is not known");
      x = apply(file_, set, known->second, number(1), x);
    }
    compare(group, set, x, report);
  }
  void run_sampler(Report& report) const {
    int64_t number = 0;
    for (const nlohmann::json& one : file_.json("crop_sampler")) {
      const std::string name = std::to_string(number++);
      RecordedDraws draws{one.at("draws")};
      const data::pillow::CropLimits limits{one.at("scale").at(0), one.at("scale").at(1),
                                            one.at("ratio").at(0), one.at("ratio").at(1)};
      const Box box = data::pillow::random_box(one.at("height"), one.at("width"), limits, draws);
      const nlohmann::json& want = one.at("box");
      report.require("crop_sampler", name,
                     box == Box{want.at(0), want.at(1), want.at(2), want.at(3)},
                     "another box than recorded");
      report.require("crop_sampler draws", name,
                     draws.as_recorded && draws.next == draws.draws.size(),
                     "other draws than recorded");
    }
  }
  void run_normalize(Report& report) const {
    data::Pipeline pipeline("normalize",
                            {{"image", data::FieldSpec::array(DType::u8, image_.shape)}}, {});
    data::Sample sample;
    sample["image"] = image_;
    pipeline.apply(sample, 0);
    const Array& got = std::get<Array>(sample.at("image"));
    const int64_t pixels = got.count() / 3;
    std::vector<float> planes(size_t(got.count()));
    for (int64_t i = 0; i < got.count(); ++i) planes[size_t(i % 3 * pixels + i / 3)] = got.f32()[i];
    const std::vector<float> want =
        file_.floats("normalize/image", {3, image_.shape[0], image_.shape[1]});
    report.compare("normalize", "normalize/image", planes.data(), want.data(), got.count(),
                   file_.tolerance("normalize/image"));
  }

  const CaseFile& file_;
  const Settings& settings_;
  Array image_;
};

}  // namespace

SslKind ssl_transforms_kind() {
  return {
      "transforms",
      [](const CaseFile& file) {
        if (holds_mixes(file)) return true;
        return file.has("inputs/image") &&
               (file.has("crop_sampler") || file.has("multicrop") || file.has("resized_crop") ||
                file.has("blur") || file.has("hue"));
      },
      [](const CaseFile& file, const Settings& settings, comm::Mesh&) -> std::unique_ptr<SslCase> {
        return std::make_unique<TransformsCase>(file, settings);
      }};
}

}  // namespace golden
