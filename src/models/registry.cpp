// SPDX-License-Identifier: Apache-2.0
#include "models/model.hpp"

namespace models {

// One row for each model. A file in a family's folder ends in NAME_row().
#define MODELS(ROW) \
  ROW(cappa)        \
  ROW(siglip)       \
  ROW(mae)          \
  ROW(classifier)   \
  ROW(linear_probe) \
  ROW(simclr)       \
  ROW(moco)         \
  ROW(swav)         \
  ROW(barlow_twins) \
  ROW(dino) ROW(npid) ROW(rotnet) ROW(jigsaw) ROW(deepcluster_v2) ROW(pirl) ROW(combined)

REGISTRY(registry, Registered, "model", MODELS)

void ModelOptions::bind(config::Table& t) {
  t.kind("kind", kind, options, registry(), "which model");
  t.list("init", init,
         "initial distributions by rule, for parameters that no file gives; others begin as the "
         "model says");
}

void MemoryOptions::bind(config::Table& t) {
  auto may = config::OnResume::may_change;
  t.moved("logits_mb", "model.logits_mb");
  t.choice("recompute", recompute, kRecomputeNames,
           "what backward computes again instead of keeping")
      .on_resume(may);
}

std::unique_ptr<Model> make_model(const ModelOptions& options, const MemoryOptions& memory) {
  return registry().at(options.kind).make(*options.options, memory);
}

}  // namespace models
