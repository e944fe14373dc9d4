// SPDX-License-Identifier: Apache-2.0
// Tests communicators of GPUs on the emulator, on 2 and 4 ranks. NCCL (emulated) and MPI through
// host memory must pass the suite of all communicators, on whole worlds and groups. Work before and
// after an exchange must keep its order, and a mesh must get the right one of the two. With an
// argument the test provokes a failure: the job must end as the message of that name describes.
#include "comm/gpu_exchange.hpp"

#include <unistd.h>

#include <cstdlib>

#include "comm_suite.hpp"
#include "device/gpu.hpp"
#include "kernels/elementwise.hpp"
#include "ranks.hpp"

namespace {

using namespace tests;

// Queues kernels, an exchange and kernels without the host in between. Each must see the results of
// the one before.
void order_of_queues(Comm& c, device::Queue& queue) {
  constexpr int64_t n = 5000;
  Array<float> x(queue, std::vector<float>(size_t(n), float(c.rank() + 1)));
  for (int round = 0; round < 4; ++round) {
    kernels::run(kernels::Add{.y = x.view, .a = x.view, .b = x.view}, queue);
    comm::Ticket ticket = c.all_reduce(x.view, queue);
    ticket.wait();
    kernels::run(kernels::Add{.y = x.view, .a = x.view, .b = x.view}, queue);
  }
  // after the first round all ranks hold equal numbers
  float right = float(c.size() * (c.size() + 1) / 2);
  right *= 4;
  for (int round = 1; round < 4; ++round) right *= float(4 * c.size());
  bool good = true;
  for (float value : x.get()) good &= value == right;
  expect(good, "kernels before and after exchanges keep their order");
}

std::string refused(const std::function<void()>& work) {
  try {
    work();
  } catch (const base::Error& e) {
    expect(e.code() == base::Exit::mesh, "exit code of a refusal");
    return e.what();
  }
  return "";
}

// Checks the exchange that a mesh gets. On the emulator every rank has a GPU of its own if there
// are enough.
void choices(comm::Session& session) {
  const int ranks = session.world().size();
  auto connect = [&](comm::Mesh& m, const char* wanted, SumOrder order = SumOrder::library) {
    m = comm::make_mesh(session, {ranks / 2, 2}, order);
    comm::MeshOptions options;
    options.gpu_exchange = base::value_of(comm::kGpuExchangeNames, wanted);
    return comm::connect_gpus(m, options, order, "a");
  };
  comm::Mesh m;
  std::string text = connect(m, "auto");
  expect(text == "nccl 2.28.9 (every rank has a GPU of its own)", text);
  {
    device::Queue queue(device::Kind::cuda);
    sums<float>(*m.fsdp, SumOrder::library, 33, queue),
        sums<float>(*m.replica, SumOrder::library, 3001, queue);
    order_of_queues(*m.fsdp, queue);
  }
  expect(connect(m, "mpi") == "mpi through host memory (mesh.gpu_exchange)",
         "mesh.gpu_exchange requests mpi");
  text = connect(m, "auto", SumOrder::tree);
  expect(text.find("mpi through host memory (determinism.level") == 0, text);
  text = refused([&] { connect(m, "nccl", SumOrder::tree); });
  expect(text.find("determinism.level") != text.npos, "nccl is requested and impossible: " + text);
  device::use_gpu(0);  // all ranks share GPU 0
  text = connect(m, "auto");
  expect(text.find("ranks 0 and 1") != text.npos && text.find("share one GPU") != text.npos, text);
  text = refused([&] { connect(m, "nccl"); });
  expect(text.find("share one GPU") != text.npos, text);
}

// Checks the promise for each kind of failure: an Error(Exit::mesh) on the waiting rank, within the
// time limit, that names rank, group and operation. The last rank fails.
int failing(comm::Session& session, const std::string& how) {
  comm::Comm& world = session.world();
  const bool culprit = world.rank() == world.size() - 1;
  if (culprit) setenv("NCCL_ON_CPU", how.c_str(), 1);
  std::string text = refused([&] {
    device::Queue queue(device::Kind::cuda);
    auto lane = comm::make_nccl_lane(2);
    auto c = comm::make_nccl_comm(session.split(0, world.rank(), SumOrder::library), "fsdp", lane);
    Array<float> x(queue, std::vector<float>(1000, 1));
    for (int i = 0; i < 5; ++i) c->all_reduce(x.view, queue).wait();
    x.get();
  });
  auto says = [&](const std::string& part) {
    expect(text.find(part) != text.npos, part + " is missing from: " + text);
  };
  says(fmt::format("rank {}", world.rank()));
  says(fmt::format("fsdp group of {} as its rank {}", world.size(), world.rank()));
  if (how == "absent") {
    says("joining it");
    says("no end after 2 s");
  } else {
    bool told = culprit && how.find("hang") != 0;
    // A rank that left at once may not have taken part in the operation before, either: the
    // emulator works only when it is queried.
    const bool exactly = how.find("hang") == 0 || (told && how.find("refuse") == 0);
    says(exactly ? "all_reduce (operation 3 of this rank, 4000 bytes of f32)"
                 : "all_reduce (operation ");
    says(!told                    ? "not ended after 2 s"
         : how.find("error") == 0 ? "unhandled system error (a cable was pulled"
                                  : "invalid usage");
    expect(!told || text.find("not ended after") == text.npos,
           "a rank that NCCL informs must not wait: " + text);
  }
  return verdict(world, how.c_str());
}

int run(comm::Session& session, int argc, char** argv) {
  comm::Comm& world = session.world();
  world_rank = world.rank();
  base::set_rank(world.rank(), world.size());
  setenv("CUDA_ON_CPU_GPUS", std::to_string(world.size()).c_str(), 1);
  device::use_gpu(session.local_rank());
  if (argc > 1) return failing(session, argv[1]);
  {
    device::Queue queue(device::Kind::cuda);
    auto lane = comm::make_nccl_lane(60);
    auto nccl = [&](int colour, const char* name) {
      return comm::make_nccl_comm(session.split(colour, world.rank(), SumOrder::library), name,
                                  lane);
    };
    auto all = nccl(0, "all"), half = nccl(world.rank() % 2, "half"),
         alone = nccl(world.rank(), "alone");
    for (comm::Comm* c : {all.get(), half.get(), alone.get()}) {
      all_of(*c, SumOrder::library, queue);
      order_of_queues(*c, queue);
    }
    device::Queue host(device::Kind::cpu);
    sums<float>(*all, SumOrder::library, 100, host);
    for (SumOrder order : {SumOrder::library, SumOrder::tree}) {
      auto mpi = session.split(0, world.rank(), order);
      all_of(*mpi, order, queue);
      order_of_queues(*mpi, queue);
    }
  }
  choices(session);
  return verdict(world, "GPU exchanges");
}

}  // namespace

int main(int argc, char** argv) { return tests::run_ranks(argc, argv, run); }
