// SPDX-License-Identifier: Apache-2.0
#include "models/part_lists.hpp"

#include <fmt/format.h>

#include <map>

#include "models/classes/class_objective.hpp"
#include "models/model.hpp"

namespace models {
namespace {

// The losses that belong to one kind of model.
constexpr const char* kOwnLosses[][3] = {
    {"captions", "cappa", "cross-entropy of the tokens of a caption, after its image"},
    {"sigmoid", "siglip", "binary cross-entropies of all pairs of images and texts of the batch"},
    {"pixels", "mae", "squared error of the pixels of masked patches"},
    {"simclr", "simclr", "contrast of a view with all other views of the batch (InfoNCE)"},
    {"moco", "moco", "contrast of a view with another one and a queue of keys"},
    {"swav", "swav", "prediction of other views' assignments to prototypes"},
    {"barlow_twins", "barlow_twins",
     "distance of the correlations of features from the unit matrix"},
    {"dino", "dino", "prediction of a teacher's scores of other views"},
    {"nce", "npid", "noise-contrastive estimation with a memory bank; model.loss.loss"},
    {"cross_entropy", "npid", "softmax over one positive and rows of a bank; model.loss.loss"},
    {"deepcluster_v2", "deepcluster_v2", "cross-entropy of the cluster of each sample's embedding"},
    {"pirl", "pirl",
     "noise-contrastive estimation of an image and its patches, with a memory bank"},
    {"rotnet", "rotnet", "cross-entropy of the angle by which an image was turned"},
    {"jigsaw", "jigsaw", "cross-entropy of the order of an image's patches"},
    {"combined", "combined", "weighted sum of the losses that [[model.loss]] names"},
};

// The required keys of the smallest deck of each kind. Its measures stand for those of all decks.
const std::map<std::string, const char*>& small_decks() {
  static const std::map<std::string, const char*> decks = {
      {"cappa", "vocab_size = 8\n"},
      {"siglip", R"(vocab_size = 8
trunk = { kind = "resnet" })"},
      {"mae", R"(trunk = { kind = "vit", variant = "mu/16", pool = "tok" })"},
      {"classifier", R"(num_classes = 8
trunk = { kind = "resnet" })"},
      {"linear_probe", R"(num_classes = 8
trunk = { kind = "resnet" }
probe = [{ name = "PROBE", tap = "flatten", head = { kind = "mlp", layers = [8] } }])"},
      {"swav", R"(trunk = { kind = "resnet" }
head = [{ kind = "swav", layers = [8], prototypes = [8] }])"},
      {"rotnet", R"(trunk = { kind = "resnet" }
head = [{ kind = "mlp", layers = [4] }])"},
      {"jigsaw", R"(permutations = 24
views = [4]
trunk = { kind = "resnet" }
head = [{ kind = "siamese_concat_view", towers = 4 }, { kind = "mlp", layers = [24] }])"},
      {"combined", R"(loss = [{ kind = "simclr" }, { kind = "barlow_twins" }]
trunk = { kind = "resnet" }
head = [{ kind = "mlp", layers = [8] }])"},
      {"deepcluster_v2", R"(loss = { samples = 8, clusters = [2] }
trunk = { kind = "resnet" }
head = [{ kind = "mlp", layers = [8] }])"},
      {"pirl", R"(views = [1, 4]
image_size = [64, 64]
loss = { samples = 8, negatives = 2 }
trunk = { kind = "resnet" }
head = [{ kind = "image_and_patches", patches = 4, patch = { layers = [8] }, joined = { layers = [8] }, image = { layers = [8] } }])"},
  };
  return decks;
}

struct ModelDeck {
  ModelOptions model;
  void bind(config::Table& t) { t.table("model", model, ""); }
};

const char* class_loss_doc(kernels::ClassLoss loss) {
  switch (loss) {
    case kernels::ClassLoss::softmax:
      return "cross-entropy of one class of each image";
    case kernels::ClassLoss::sigmoid:
      return "binary cross-entropies of all classes of each image";
    case kernels::ClassLoss::squared:
      return "squared error of each output";
    case kernels::ClassLoss::smooth_l1:
      return "squared error of small errors, absolute error of large ones";
  }
  return "";
}

std::vector<Measure> measures_of(const std::string& kind) {
  constexpr const char* kOfEmbeddings = R"(trunk = { kind = "resnet" }
head = [{ kind = "mlp", layers = [8] }])";
  const auto own = small_decks().find(kind);
  ModelDeck small;
  const config::Deck deck(
      {.path = "the smallest deck",
       .text = fmt::format("[model]\nkind = \"{}\"\n{}\n", kind,
                           own == small_decks().end() ? kOfEmbeddings : own->second),
       .overrides = {}},
      small);
  deck.throw_if_any();
  return make_model(small.model, {})->measures();
}

}  // namespace

std::vector<NamedPart> loss_parts() {
  std::vector<NamedPart> out;
  for (const auto& [name, loss] : kClassLossNames)
    out.push_back(
        {name, fmt::format("{}; model.loss of model.kind = \"classifier\", \"linear_probe\"",
                           class_loss_doc(loss))});
  for (const auto& [name, kind, doc] : kOwnLosses)
    out.push_back({name, fmt::format("{}; model.kind = \"{}\"", doc, kind)});
  return out;
}

std::vector<NamedPart> measure_parts() {
  std::vector<NamedPart> out;
  for (const Registered& model : registry())
    for (const Measure& m : measures_of(model.name))
      out.push_back(
          {m.name, fmt::format("{} ({}); model.kind = \"{}\"", m.doc, m.unit, model.name)});
  return out;
}

}  // namespace models
