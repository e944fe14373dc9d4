// SPDX-License-Identifier: Apache-2.0
// Two steps of the deck's model on made-up data, on all meshes of this number of ranks. For powers
// of two, level "mesh" promises the same bits of loss and norms on all of them; other numbers of
// ranks agree within rounding. A model that this machine cannot run quickly is replaced by a small
// one, and the row says so.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"
#include "modes/selftest_checks.hpp"
#include "modes/selftest_model.hpp"
#include "shard/tensor_roots.hpp"

namespace modes::selftest {

namespace {

constexpr int kSteps = 2;
constexpr uint64_t kSeed = 7;

// Adds small numbers to the initial weights, because some are zero, which makes most gradients
// zero, too.
void stir(step::Engine& engine) {
  for (const shard::TensorSlice& slice : engine.state()) {
    if (!slice.name.starts_with(shard::kWeightRoot) || slice.shape.size() < 2) continue;
    const base::Stream draws(kSeed, slice.name);
    for (const auto& part : slice.parts) {
      std::vector<float> values(static_cast<size_t>(part.end - part.begin));
      const device::View view{part.data, device::DType::f32, part.end - part.begin};
      device::download(values.data(), view, engine.queue());
      for (size_t i = 0; i < values.size(); ++i)
        values[i] += 0.04f * (draws.uniform(uint64_t(part.begin) + i) - 0.5f);
      device::upload(view, values.data(), engine.queue());
    }
  }
}

// Loss, norm of the gradients and norm of the parameters of each step.
using Numbers = std::vector<double>;

Numbers run_on(Place& place, const step::EngineOptions& options, comm::MeshShape shape) {
  comm::Mesh mesh = host::connect_ranks(
      place.session, place.recipe.mesh, shape,
      options.determinism.mesh() ? comm::SumOrder::tree : comm::SumOrder::library, place.device);
  step::Engine engine(options, mesh, place.device.kind);
  engine.initialise();
  stir(engine);
  engine.publish();
  const Features features = engine.model().features();
  Numbers out;
  for (int64_t s = 1; s <= kSteps; ++s) {
    const step::Geometry& g = engine.geometry();
    const step::StepReport& report = engine.step(s, [&](int64_t m) {
      return made_batch(features, kSeed, (s - 1) * g.global_batch + g.first_example(mesh, m),
                        g.micro_batch);
    });
    out.insert(out.end(),
               {report.loss(), report.gradients.gradients.global, report.update.parameters.global});
  }
  return out;
}

std::string text_of(const Numbers& numbers) {
  return fmt::format("loss {:.9g}, norms of gradients {:.9g} and parameters {:.9g}", numbers[0],
                     numbers[1], numbers[2]);
}

// Returns the largest relative difference of the first step.
double difference(const Numbers& a, const Numbers& b) {
  double worst = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double scale = std::max(std::abs(b[i]), 1e-30);
    worst = std::isfinite(a[i]) && std::isfinite(b[i])
                ? std::max(worst, std::abs(a[i] - b[i]) / scale)
                : 1e300;
  }
  return worst;
}

bool same_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 8) == 0;
}

int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  while (file >> name) {
    if (name == "MemAvailable:" && file >> kib) return kib << 10;
    file.ignore(1 << 16, '\n');
  }
  return int64_t{1} << 60;
}

// Returns the meshes to compare, those that differ most first.
std::vector<comm::MeshShape> shapes_of(int ranks) {
  std::vector<comm::MeshShape> out = {{1, ranks}};
  if (ranks > 1) out.push_back({ranks, 1});
  for (int replica = 2; replica < ranks; ++replica)
    if (ranks % replica == 0) out.push_back({replica, ranks / replica});
  return out;
}

// Returns why this machine cannot run the deck's model quickly; "" if it can, on the first `shapes`
// meshes.
std::string too_large(Place& place, const Needs& needs, size_t& shapes) {
  if (!needs.problem.empty()) return needs.problem;
  comm::Comm& world = place.world();
  const int64_t room = world.min(available_bytes() / place.session.local_size());
  if (place.device.kind == device::Kind::cpu && needs.bytes > room / 2)
    return fmt::format("a rank needs {} MiB, more than half of its {} MiB",
                       base::mebibytes(needs.bytes), base::mebibytes(room));
  need_speeds(place, 0.3);
  double flops = 0;
  for (const Speed& speed : place.speeds) flops += speed.mean_flops;
  // Small batches reach a part of the products' speed.
  constexpr double kOfSpeed = 0.25;
  const double step_s = needs.flops / flops / kOfSpeed, limit_s = place.recipe.selftest.mesh_s;
  const double runs = limit_s / (step_s * kSteps);
  const size_t least = std::min<size_t>(shapes, 2);
  if (runs < double(least + 1))
    return fmt::format("{} steps would take about {:.0f} s, but selftest.mesh_s = {:g}",
                       kSteps * int(least + 1), step_s * kSteps * double(least + 1), limit_s);
  shapes = std::min(shapes, size_t(runs) - 1);
  return "";
}

}  // namespace

Row check_meshes(Place& place) {
  comm::Comm& world = place.world();
  const int ranks = place.ranks();
  std::vector<comm::MeshShape> shapes = shapes_of(ranks);
  const size_t all_shapes = shapes.size();
  auto plan = [&](const train::Recipe& recipe) {
    const std::string text = comm::on_first(world, [&] {
      const Needs n = plan_needs(recipe, ranks, place.threads, place.device.kind);
      return fmt::format("{} {} {} {}", n.each, n.bytes, n.flops, n.problem);
    });
    const std::vector<std::string> words = base::split(text, ' ');
    Needs needs{std::stoll(words[0]), std::stoll(words[1]), std::stod(words[2]), ""};
    size_t at = 0;
    for (int i = 0; i < 3; ++i) at = text.find(' ', at) + 1;
    needs.problem = text.substr(at);
    return needs;
  };
  Needs needs = plan(place.recipe);
  size_t count = shapes.size();
  const std::string because = too_large(place, needs, count);
  train::Recipe small;
  std::string what = place.recipe.model.kind;
  if (!because.empty()) {
    const config::Deck deck({"the small deck", kSmallDeck, {}}, small);
    deck.throw_if_any();
    needs = plan(small);
    CHECK(needs.problem.empty(), "{}", needs.problem);
    count = shapes.size();
    what = fmt::format("a small model instead of the deck's ({})", base::one_line(because, 200));
  }
  shapes.resize(count);
  const step::EngineOptions options = engine_options(because.empty() ? place.recipe : small, ranks,
                                                     needs.each, place.threads, place.device.kind);
  const bool exact = options.determinism.mesh();

  Row row{.check = "mesh", .text = {}};
  Numbers reference;
  for (size_t i = 0; i <= shapes.size() && row.bad.empty(); ++i) {
    // At last the first mesh again: the same run twice.
    const comm::MeshShape shape = shapes[i % shapes.size()];
    const Numbers numbers = run_on(place, options, shape);
    const std::string name = fmt::format("replica {} x fsdp {}", shape.replica, shape.fsdp);
    // All ranks must have the same numbers.
    const std::vector<std::string> digests =
        world.gather_text(fmt::format("{:x}", base::xxh3(numbers.data(), numbers.size() * 8)));
    std::map<std::string, int> counts;
    int most = 0;
    for (const std::string& digest : digests) most = std::max(most, ++counts[digest]);
    for (int r = 0; r < ranks; ++r)
      if (counts[digests[size_t(r)]] < most ||
          (2 * most == ranks && digests[size_t(r)] != digests[0]))
        row.bad.push_back(
            {r, fmt::format("its loss or norms differ from the other ranks' on {}", name)});
    if (i == 0) reference = numbers;
    const bool again = i == shapes.size();
    const bool alike =
        exact || again ? same_bits(numbers, reference) : difference(numbers, reference) <= 1e-5;
    if (world.max(int64_t(!alike)) && row.bad.empty())
      row.bad.push_back({0, again ? fmt::format("the same run twice gives other bits: {}, then {}",
                                                text_of(reference), text_of(numbers))
                                  : fmt::format("replica {} x fsdp {} gives {}, and {} gives {}",
                                                shapes[0].replica, shapes[0].fsdp,
                                                text_of(reference), name, text_of(numbers))});
  }
  row.text = fmt::format(
      "{}, {} of {} mesh{} of {} rank{} and the first again: {}; {}", what, shapes.size(),
      all_shapes, all_shapes == 1 ? "" : "es", ranks, ranks == 1 ? "" : "s",
      exact ? "the same bits" : "within 1e-5 (no power of two)", text_of(reference));
  return row;
}

}  // namespace modes::selftest
