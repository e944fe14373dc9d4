// SPDX-License-Identifier: Apache-2.0
// A weighted sum of losses of the same embeddings (ssl.md 3.9). Each loss is a row of kinds() here.
#include <fmt/format.h>

#include <algorithm>

#include "base/registry.hpp"
#include "kernels/elementwise.hpp"
#include "models/losses/losses.hpp"

namespace models {
namespace {

struct Kind {
  const char *name, *doc;
  int64_t least_views, most_views;  // of an example
  std::shared_ptr<config::Table::Variant> (*make_options)();
  std::unique_ptr<EmbeddingLoss> (*make)(const config::Table::Variant& options);
};

// The keys of a loss, as a variant of a table.
template <class Options>
struct Keys : config::Table::Variant, Options {
  void bind(config::Table& t) override { Options::bind(t); }
};

template <class Options, std::unique_ptr<EmbeddingLoss> (*kMake)(const Options&)>
Kind kind(const char* name, const char* doc, int64_t least, int64_t most) {
  return {name,
          doc,
          least,
          most,
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<Keys<Options>>()); },
          [](const config::Table::Variant& options) {
            return kMake(dynamic_cast<const Keys<Options>&>(options));
          }};
}

const base::Registry<Kind>& kinds() {
  static const base::Registry<Kind> all(
      "loss", {kind<SimclrLossOptions, make_simclr_loss>(
                   "simclr", "contrast of a view with all other views of the batch", 2, INT32_MAX),
               kind<BarlowLossOptions, make_barlow_loss>(
                   "barlow_twins", "distance of correlations from the unit matrix", 2, 2)});
  return all;
}

class CombinedLoss : public EmbeddingLoss {
 public:
  explicit CombinedLoss(const std::vector<LossTermOptions>& terms) {
    for (const LossTermOptions& term : terms) {
      const Kind& kind = kinds().at(term.kind);
      losses_.push_back({term.label(), kind.doc, float(term.weight), kind.make(*term.options)});
    }
  }

  std::vector<LossTerm> terms() const override {
    std::vector<LossTerm> out;
    for (const Term& term : losses_)
      out.push_back({term.name, "1", fmt::format("{}, before its weight", term.doc)});
    return out;
  }
  void check_batch(int64_t examples) const override {
    for (const Term& term : losses_) term.loss->check_batch(examples);
  }

  void run(nn::Context& ctx, const StepEmbeddings& step) const override {
    for (const StepEmbeddings::Part& part : step.parts) {
      ctx.run(kernels::Fill{.y = part.loss});
      for (const View& gradient : part.gradients) ctx.run(kernels::Fill{.y = gradient});
    }
    for (size_t t = 0; t < losses_.size(); ++t) {
      device::Arena::Scope scope(ctx.arena);
      StepEmbeddings own = step;
      for (StepEmbeddings::Part& part : own.parts) {
        part.loss = part.terms[t];
        part.terms.clear();
        for (View& gradient : part.gradients) gradient = ctx.arena.temporary(gradient.count);
      }
      losses_[t].loss->run(ctx, own);
      for (size_t m = 0; m < step.parts.size(); ++m) {
        add(ctx, step.parts[m].loss, own.parts[m].loss, t);
        for (size_t o = 0; o < step.parts[m].gradients.size(); ++o)
          add(ctx, step.parts[m].gradients[o], own.parts[m].gradients[o], t);
      }
    }
  }

 private:
  struct Term {
    std::string name, doc;
    float weight;
    std::unique_ptr<EmbeddingLoss> loss;
  };
  void add(nn::Context& ctx, View sum, View own, size_t term) const {
    ctx.run(kernels::Add{.y = sum, .a = sum, .b = own, .scale = losses_[term].weight});
  }

  std::vector<Term> losses_;
};

}  // namespace

void LossTermOptions::bind(config::Table& t) {
  t.kind("kind", kind, options, kinds(), "which loss");
  t.key("weight", weight, "factor of this loss in the sum").min(0).max(1e6);
  t.key("name", name, "of its measure; default: its kind")
      .on_resume(config::OnResume::never)
      .check([this]() -> std::string {
        const bool plain = std::ranges::all_of(name, [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
        });
        return plain ? "" : "may have only characters a to z, 0 to 9 and _";
      });
}

std::string LossTermOptions::views_problem(int64_t views) const {
  const Kind* row = kinds().find(kind);
  if (!row || (views >= row->least_views && views <= row->most_views)) return "";
  return fmt::format("make {} of an image, but the loss \"{}\" compares {}{}; change model.views",
                     views, kind, row->least_views,
                     row->most_views > row->least_views ? " or more" : "");
}

std::unique_ptr<EmbeddingLoss> make_combined_loss(const std::vector<LossTermOptions>& terms) {
  return std::make_unique<CombinedLoss>(terms);
}

}  // namespace models
