// SPDX-License-Identifier: Apache-2.0
#include "comm/mesh.hpp"

#include <algorithm>

#include "base/pattern.hpp"
#include "base/text.hpp"
#include "comm/gpu_exchange.hpp"
#include "device/gpu.hpp"

namespace comm {
namespace {

void check_axes(config::Table& t, int64_t replica, int64_t fsdp) {
  if (replica == 0 || fsdp == 0)
    t.error(replica == 0 ? "replica" : "fsdp", "0 is not a size; use a count or -1 (inferred)");
  if (replica == -1 && fsdp == -1)
    t.error("fsdp", "only one of replica and fsdp can be -1 (inferred)");
}

}  // namespace

void MeshRule::bind(config::Table& t) {
  t.key("match", match,
        "full match on --mesh-selector or $TRAINER_MESH_SELECTOR; the first rule that matches wins")
      .required()
      .on_resume(config::OnResume::may_change);
  t.key("replica", replica, "outer axis; -1 = inferred")
      .min(-1)
      .max(kMostRanks)
      .on_resume(config::OnResume::may_change);
  t.key("fsdp", fsdp, "inner axis; -1 = inferred")
      .min(-1)
      .max(kMostRanks)
      .on_resume(config::OnResume::may_change);
  check_axes(t, replica, fsdp);
  if (std::string problem = base::pattern_problem(match); !problem.empty())
    t.error("match", problem);
}

void MeshOptions::bind(config::Table& t) {
  t.key("replica", replica,
        "outer axis: groups that hold the same parameters; -1 = inferred from the number of ranks")
      .min(-1)
      .max(kMostRanks)
      .on_resume(config::OnResume::may_change);
  t.key("fsdp", fsdp, "inner axis: ranks that share parameters or optimizer state; -1 = inferred")
      .min(-1)
      .max(kMostRanks)
      .on_resume(config::OnResume::may_change);
  t.list("rule", rules, "other mesh sizes, chosen by --mesh-selector");
  t.choice("gpu_exchange", gpu_exchange, kGpuExchangeNames,
           "between GPUs: nccl; mpi: through host memory; auto: nccl where every rank has a GPU of "
           "its own")
      .on_resume(config::OnResume::may_change);
  t.key("gpu_timeout_s", gpu_timeout_s,
        "an exchange by NCCL that takes longer than this ends the job (exit 3); 0 = no limit")
      .min(0)
      .unit("s")
      .on_resume(config::OnResume::may_change);
  t.key("bucket_mb", bucket_mb,
        "the gradients of a block are exchanged together, and so are those of neighbouring units "
        "up to this size in all; 0 = each unit alone. Applies to replicated parameters with "
        "replicated optimizer state, at determinism.level \"run\"")
      .min(0)
      .max(1 << 20)
      .unit("MiB")
      .on_resume(config::OnResume::may_change);
  check_axes(t, replica, fsdp);
}

namespace {

// Returns the rule that the selector matches; nullptr if there is no selector and [mesh] applies.
const MeshRule* pick_rule(const MeshOptions& options, const std::string& selector) {
  if (selector.empty()) return nullptr;
  std::string known;
  for (const MeshRule& rule : options.rules) {
    if (base::Pattern(rule.match).matches(selector)) return &rule;
    known +=
        fmt::format("{}\"{}\"", known.empty() ? "; the deck has rules for: " : ", ", rule.match);
  }
  base::fail(base::Exit::mesh,
             "--mesh-selector (or $TRAINER_MESH_SELECTOR) = \"{}\" matches no [[mesh.rule]]{}; add "
             "one, or leave the selector out for [mesh]",
             selector, known.empty() ? "; the deck has none" : known);
}

}  // namespace

int64_t wanted_ranks(const MeshOptions& options, const std::string& selector) {
  const MeshRule* rule = pick_rule(options, selector);
  int64_t r = rule ? rule->replica : options.replica, f = rule ? rule->fsdp : options.fsdp;
  // the product cannot overflow, because each axis is bounded
  return std::max<int64_t>(1, r) * std::max<int64_t>(1, f);
}

MeshShape resolve_mesh(const MeshOptions& options, int ranks, const std::string& selector) {
  int64_t r = options.replica, f = options.fsdp;
  std::string origin = "[mesh]";
  if (const MeshRule* rule = pick_rule(options, selector)) {
    r = rule->replica;
    f = rule->fsdp;
    origin = fmt::format("[[mesh.rule]] match = \"{}\"", rule->match);
  }
  auto refuse = [&](const std::string& why) {
    base::fail(base::Exit::mesh, "{}: replica = {} x fsdp = {} does not fit {} rank{}: {}", origin,
               r, f, ranks, ranks == 1 ? "" : "s", why);
  };
  int64_t known = r == -1 ? f : r;
  if (r == -1 || f == -1) {
    if (ranks % known)
      refuse(fmt::format("{} is not divisible by {}; start a multiple of {} ranks, or change {}",
                         ranks, known, known, r == -1 ? "mesh.fsdp" : "mesh.replica"));
    (r == -1 ? r : f) = ranks / known;
  }
  if (r * f != ranks)
    refuse(fmt::format(
        "their product is {}; start `mpirun -np {}`, or set one of them to -1 (inferred)", r * f,
        r * f));
  return {int(r), int(f)};
}

device::Buffer Mesh::shared_buffer(device::Kind kind, device::Ledger& ledger, std::string category,
                                   int64_t bytes) const {
  return (shape.fsdp > 1 ? fsdp : replica)->shared_buffer(kind, ledger, std::move(category), bytes);
}

Mesh make_mesh(Session& session, MeshShape shape, SumOrder order) {
  Mesh m;
  int rank = session.world().rank();
  m.shape = shape;
  m.world = &session.world();
  m.replica_index = rank / shape.fsdp;
  m.fsdp_index = rank % shape.fsdp;
  m.fsdp = session.split(m.replica_index, m.fsdp_index, order, "fsdp");
  m.replica = session.split(m.fsdp_index, m.replica_index, order, "replica");
  return m;
}

namespace {

// Returns NCCL's version. All ranks throw if a rank has no NCCL or another version.
std::string agree_on_nccl(Comm& world) {
  std::string mine;
  try {
    mine = fmt::format("+{}", nccl_version());
  } catch (const base::Error& e) {
    mine = std::string("-") + e.what();
  }
  std::vector<std::string> all = world.gather_text(mine);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r][0] == '-')
      throw base::Error(base::Exit::mesh, fmt::format("rank {}: {}", r, all[r].substr(1)), true,
                        int(r));
    if (all[r] != all[0])
      throw base::Error(
          base::Exit::mesh,
          fmt::format("rank {} has NCCL {}, rank 0 has {}", r, all[r].substr(1), all[0].substr(1)),
          true);
  }
  return all[0].substr(1);
}

}  // namespace

std::string connect_gpus(Mesh& mesh, const MeshOptions& options, SumOrder order,
                         const std::string& host) {
  if (options.gpu_exchange == GpuExchange::mpi)
    return "mpi through host memory (mesh.gpu_exchange)";
  std::vector<RankDevice> ranks;
  for (const std::string& text : mesh.world->gather_text(host + "\n" + device::gpu_uuid())) {
    std::vector<std::string> parts = base::split(text, '\n');
    ranks.push_back({parts.at(0), parts.at(1)});
  }
  ExchangeChoice choice = choose_exchange(ranks, order);
  if (!choice.nccl && options.gpu_exchange == GpuExchange::nccl && ranks.size() > 1)
    throw base::Error(
        base::Exit::mesh,
        fmt::format("mesh.gpu_exchange = \"nccl\": {}; \"auto\" would use MPI", choice.because),
        true);
  if (!choice.nccl)
    return fmt::format("mpi through host memory ({}){}", choice.because,
                       options.gpu_timeout_s == MeshOptions().gpu_timeout_s
                           ? ""
                           : "; mesh.gpu_timeout_s is unused, because it applies only to NCCL");
  std::string version = agree_on_nccl(*mesh.world);
  std::shared_ptr<NcclLane> lane = make_nccl_lane(options.gpu_timeout_s);
  mesh.fsdp = make_nccl_comm(std::move(mesh.fsdp), "fsdp", lane);
  mesh.replica = make_nccl_comm(std::move(mesh.replica), "replica", lane);
  return fmt::format("nccl {} ({})", version, choice.because);
}

Mesh make_plan_mesh(MeshShape shape, Comm& world) {
  Mesh m;
  m.shape = shape;
  m.world = &world;
  m.fsdp = make_plan_comm(shape.fsdp, 0, "fsdp");
  m.replica = make_plan_comm(shape.replica, 0, "replica");
  return m;
}

}  // namespace comm
