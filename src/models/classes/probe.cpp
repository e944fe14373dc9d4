// SPDX-License-Identifier: Apache-2.0
#include "models/classes/probe.hpp"

#include <algorithm>

#include "kernels/average_pool.hpp"
#include "models/heads/head_kinds.hpp"

namespace models {
namespace {

// Error(Exit::config) with the list of taps and the key of the deck if there is no such tap.
Tap named_tap(const std::vector<Tap>& taps, const std::string& name, const std::string& key) {
  try {
    return chosen_taps(taps, {name})[0];
  } catch (const base::Error& e) {
    throw base::Error(e.code(), fmt::format("{}: {}", key, e.what()));
  }
}

kernels::Window window_of(const Probe& probe, int64_t images, int64_t height, int64_t width) {
  return {.batch = images,
          .height = height,
          .width = width,
          .kernel_height = probe.pool,
          .kernel_width = probe.pool,
          .stride = probe.pool_stride,
          .padding = probe.pool_padding};
}

}  // namespace

void ProbeOptions::bind(config::Table& t) {
  const auto never = config::OnResume::never;
  t.key("tap", tap, "the values of the trunk that the head reads; an unknown name lists all")
      .required()
      .on_resume(never);
  t.key("name", name, "in measures, as NAME_top1; default: the name of the tap").on_resume(never);
  t.key("pool", pool,
        "height and width of the windows whose means the head reads; 0 = the values as they are")
      .min(0)
      .max(16384)
      .unit("pixels")
      .on_resume(never);
  t.key("pool_stride", pool_stride, "distance of windows")
      .min(1)
      .max(16384)
      .unit("pixels")
      .on_resume(never);
  t.key("pool_padding", pool_padding,
        "zeros around the values; they count in the means, as in the published protocol")
      .min(0)
      .max(8192)
      .unit("pixels")
      .on_resume(never);
  t.table("head", head, "what turns these values into a score for each class");
  if (pool == 0 && (pool_stride != 1 || pool_padding != 0))
    t.error("pool",
            "missing, but pool_stride or pool_padding is set; give the size of the windows");
  if (2 * pool_padding > pool)
    t.error("pool_padding", fmt::format("{} is more than half of pool = {}, so a window could hold "
                                        "zeros alone",
                                        pool_padding, pool));
}

Probe make_probe(const ProbeOptions& options, const std::vector<Tap>& taps, int64_t classes,
                 const std::string& path, ParameterList& list) {
  const std::string key = fmt::format("model.probe \"{}\"", options.label());
  const Tap tap = named_tap(taps, options.tap, key);
  Probe probe{options.label(),      options.tap, options.pool, options.pool_stride,
              options.pool_padding, tap.count(), nullptr};
  if (probe.pool > 0) {
    if (tap.shape.size() != 3)
      base::fail(base::Exit::config, "{}: pool = {}, but {} has no height and width; leave it out",
                 key, probe.pool, tap.name);
    const int64_t padded = std::min(tap.shape[0], tap.shape[1]) + 2 * probe.pool_padding;
    if (probe.pool > padded)
      base::fail(base::Exit::config,
                 "{}: pool = {} is larger than {}, which has {} x {} values; give at most {}", key,
                 probe.pool, tap.name, tap.shape[0], tap.shape[1], padded);
    const kernels::Window window = window_of(probe, 1, tap.shape[0], tap.shape[1]);
    probe.in = window.positions() * tap.shape[2];
  }
  if (auto* head = dynamic_cast<const EvalMlpHeadOptions*>(options.head.options.get());
      head && head->channels != tap.shape.back())
    base::fail(base::Exit::config, "{}: its head has channels = {}, but {} has {}", key,
               head->channels, tap.name, tap.shape.back());
  probe.head = make_head(options.head, path, probe.in, list);
  if (probe.head->joins() > 1)
    base::fail(base::Exit::config,
               "{}: its head joins {} images, which have a class each; use kind = \"mlp\" or "
               "\"eval_mlp\"",
               key, probe.head->joins());
  if (probe.head->widths() != std::vector<int64_t>{classes})
    base::fail(
        base::Exit::config,
        "{}: its head has outputs of {} values; it must have one output, of model.num_classes = {}",
        key, fmt::join(probe.head->widths(), ", "), classes);
  return probe;
}

void Probe::read(nn::Context& ctx, const Trunk::TapValues& values, View into) const {
  if (pool > 0)
    ctx.run(kernels::AveragePoolForward{
        .y = into,
        .x = values.values,
        .window = window_of(*this, values.images, values.grid_height, values.grid_width),
        .channels = values.channels});
  else if (values.values.type == device::DType::f32)
    device::copy(into, values.values, ctx.queue);
  else
    ctx.run(kernels::Cast{.y = into, .x = values.values});
}

}  // namespace models
