// SPDX-License-Identifier: Apache-2.0
#include "optim/noise.hpp"

#include "base/pattern.hpp"

namespace optim {

void NoiseOptions::bind(config::Table& t) {
  t.key("match", match, "regular expression that must match the whole parameter path");
  t.key("std", std, "standard deviation of the noise that passes of training see on weights")
      .required()
      .above(0);
  if (std::string problem = base::pattern_problem(match); !problem.empty())
    t.error("match", problem);
}

Noise::Noise(shard::Fabric fabric, const NoiseOptions& options, uint64_t seed,
             shard::WeightStore& weights)
    : fabric_(fabric), std_(options.std), weights_(weights) {
  const shard::Layout& layout = fabric.layout;
  const base::Pattern pattern(options.match);
  std::vector<bool> noisy;
  bool any = false;
  for (const shard::Parameter& p : layout.parameters()) {
    noisy.push_back(layout.units()[size_t(p.unit)].trained() && pattern.matches(p.path));
    any = any || noisy.back();
  }
  if (!any)
    base::fail(base::Exit::config,
               "noise.match: \"{}\" matches no trained parameter; --unset noise --mode plan --set "
               "plan.parameters=true lists them",
               options.match);
  kept_ = ElementState(fabric, device::DType::f32, [&](int p) { return noisy[size_t(p)]; });
  const base::Stream stream(seed, "noise");
  for (int u = 0; u < int(layout.units().size()); ++u)
    for (const shard::Segment& s :
         layout.segments(u, layout.owned_begin(u, fabric.mesh.fsdp_index), layout.owned_count(u)))
      if (noisy[size_t(s.parameter)])
        parts_.push_back(
            {{u, s.parameter, s.begin, s.end, s.offset},
             stream.sub(base::stream_id(layout.parameters()[size_t(s.parameter)].path))});
}

void Noise::begin(int64_t step) {
  for (const Part& part : parts_) {
    const device::View here = weights(part.piece), kept = kept_.of(part.piece);
    copies_.add({.average = kept, .values = here});
    noise_.add({.y = here,
                .x = kept,
                .stream = part.stream.sub(uint64_t(step)),
                .begin = part.piece.begin,
                .std = float(std_)});
  }
  copies_.run(fabric_.queue);
  noise_.run(fabric_.queue);
  weights_.publish(true);
}

void Noise::end() {
  for (const Part& part : parts_)
    copies_.add({.average = weights(part.piece), .values = kept_.of(part.piece)});
  copies_.run(fabric_.queue);
}

}  // namespace optim
