// SPDX-License-Identifier: Apache-2.0
// Exchanges: how long they take, and whether every value arrives. Each element has a value of its
// own that depends on rank, position and round. All sums are whole numbers below 2^24, so floats
// hold them exactly. A lost, doubled, swapped or old block therefore shows.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "device/memory.hpp"
#include "modes/selftest_checks.hpp"

namespace modes::selftest {
namespace {

enum class Way { all_reduce, shared_sum, all_gather, reduce_scatter, count };
constexpr const char* kWays[] = {"all_reduce", "all_reduce in shared memory", "all_gather",
                                 "reduce_scatter"};

// Returns the value of element `i` of what `rank` of a group contributes.
float contribution(uint32_t rank, uint32_t i, uint32_t round, int bits) {
  uint32_t x = i * 2654435761u ^ (rank + 1) * 2246822519u ^ (round + 1) * 3266489917u;
  x ^= x >> 15;
  x *= 2654435769u;
  x ^= x >> 13;
  return float(x >> (32 - bits));
}

// The wrong values that a rank has got.
struct Wrong {
  int64_t count = 0;
  std::string first;      // what came instead of what, and where
  std::set<int> senders;  // world ranks whose blocks were wrong

  std::string pack() const {
    return fmt::format("{}\n{}\n{}", count, first, fmt::join(senders, " "));
  }
  static Wrong unpack(const std::string& text) {
    const std::vector<std::string> lines = base::split(text, '\n');
    Wrong out{.count = std::stoll(lines.at(0)), .first = lines.at(1), .senders = {}};
    if (!lines.at(2).empty())
      for (const std::string& word : base::split(lines.at(2), ' '))
        out.senders.insert(std::stoi(word));
    return out;
  }
};

// A group of ranks and what its exchanges gave.
class Tested {
 public:
  // `members`: the world ranks of the group, by rank of the group.
  Tested(Place& place, comm::Comm& group, std::vector<int> members)
      : place_(place),
        group_(group),
        members_(std::move(members)),
        queue_(place.device.kind, 1),
        bits_(24 - std::bit_width(unsigned(group.size() - 1))) {}

  const std::vector<int>& members() const { return members_; }
  Wrong blocks, sums;
  double fastest[int(Way::count)] = {1e30, 1e30, 1e30, 1e30};

  bool has(Way way) const {
    return way != Way::shared_sum ||
           (place_.device.kind == device::Kind::cpu && place_.session.local_size() > 1);
  }

  // Exchanges `each` floats of each rank `rounds` times and checks all values.
  void run(Way way, int64_t each, int rounds) {
    const int64_t all = each * group_.size();
    const bool scatters = way == Way::reduce_scatter, gathers = way == Way::all_gather;
    device::Ledger ledger;
    auto make = [&](int64_t count) {
      return device::Buffer(place_.device.kind, ledger, "selftest", count * 4);
    };
    const device::Buffer given =
        way == Way::shared_sum
            ? group_.shared_buffer(place_.device.kind, ledger, "selftest", all * 4)
            : make(gathers ? each : all);
    const device::Buffer got = gathers || scatters ? make(gathers ? all : each) : device::Buffer();
    std::vector<float> host(static_cast<size_t>(all));
    double best = 1e30;
    for (int round = 0; round < rounds; ++round, ++round_) {
      // Buffers may have padding after their elements.
      const device::View send = given.view(device::DType::f32).slice(0, gathers ? each : all);
      for (int64_t i = 0; i < send.count; ++i)
        host[size_t(i)] = contribution(uint32_t(group_.rank()), uint32_t(i), round_, bits_);
      device::upload(send, host.data(), queue_);
      device::View result = send;
      if (gathers || scatters) {
        result = got.view(device::DType::f32).slice(0, gathers ? all : each);
        std::fill_n(host.begin(), result.count, -1.0f);  // shows elements that stay
        device::upload(result, host.data(), queue_);
      }
      queue_.synchronize("data to exchange");
      group_.barrier();
      const base::Stopwatch watch;
      if (gathers)
        group_.all_gather(send, result, queue_).wait();
      else if (scatters)
        group_.reduce_scatter(send, result, queue_).wait();
      else
        group_.all_reduce(send, queue_).wait();
      queue_.synchronize("an exchange");
      best = std::min(best, watch.seconds());
      device::download(host.data(), result, queue_);
      check(way, host.data(), result.count, each);
    }
    fastest[int(way)] = best;
  }

 private:
  float expected(Way way, int64_t i, int64_t each) const {
    if (way == Way::all_gather)
      return contribution(uint32_t(i / each), uint32_t(i % each), round_, bits_);
    const int64_t at = way == Way::reduce_scatter ? i + each * group_.rank() : i;
    float sum = 0;
    for (int r = 0; r < group_.size(); ++r)
      sum += contribution(uint32_t(r), uint32_t(at), round_, bits_);
    return sum;
  }
  void check(Way way, const float* values, int64_t count, int64_t each) {
    Wrong& wrong = way == Way::all_gather ? blocks : sums;
    for (int64_t i = 0; i < count; ++i) {
      const float right = expected(way, i, each);
      if (values[i] == right) continue;
      if (wrong.count++ == 0)
        wrong.first = fmt::format("{}: {:.0f} instead of {:.0f} at {} of {}", kWays[int(way)],
                                  values[i], right, i, count);
      if (way == Way::all_gather) wrong.senders.insert(members_[size_t(i / each)]);
    }
  }

  Place& place_;
  comm::Comm& group_;
  std::vector<int> members_;
  device::Queue queue_;
  int bits_;  // of a value, so that sums stay below 2^24
  uint32_t round_ = 0;
};

constexpr int64_t kSmall = 16, kLarge = 256 << 10;  // floats of a rank, and of all ranks together

// Tests pairs of neighbours in a ring, in rounds in which each rank has at most one partner.
std::vector<Pair> exchange_in_pairs(Place& place) {
  comm::Comm& world = place.world();
  const int n = world.size(), rank = world.rank();
  std::vector<Pair> pairs;
  for (int shift = 0; shift < (n > 2 ? 2 + n % 2 : 1); ++shift) {
    // In an odd ring the third round has the pair that neither of the others has.
    const int turned = (rank + shift) % n, colour = turned / 2;
    const std::unique_ptr<comm::Comm> pair =
        place.session.split(colour, turned, comm::SumOrder::library);
    Wrong mine;
    if (pair->size() == 2) {
      const int partner = ((turned ^ 1) - shift + n) % n;
      Tested tested(place, *pair,
                    turned % 2 ? std::vector{partner, rank} : std::vector{rank, partner});
      for (const Way way : {Way::all_reduce, Way::reduce_scatter}) tested.run(way, kSmall << 10, 2);
      mine = tested.sums;
    }
    const std::vector<std::string> all = world.gather_text(fmt::format("{}", mine.count));
    for (int t = 0; t + 1 < n; t += 2) {
      const int a = (t - shift + n) % n, b = (t + 1 - shift + n) % n;
      pairs.push_back({a, b, all[size_t(a)] != "0", all[size_t(b)] != "0"});
    }
  }
  return pairs;
}

std::string figures(comm::Comm& world, const Tested& tested, const double* small,
                    const double* large, int64_t bytes) {
  std::string text;
  for (int way = 0; way < int(Way::count); ++way) {
    if (!tested.has(Way(way))) continue;
    const double latency = world.max(small[way]), seconds = world.max(large[way]);
    text += fmt::format("{}{} {:.0f} us, {:.3g} GB/s", text.empty() ? "" : "; ", kWays[way],
                        latency * 1e6, double(bytes) / seconds * 1e-9);
  }
  return text;
}

// A row, and the ranks that saw wrong sums.
struct Judged {
  Row row;
  std::set<int> saw_wrong_sums;
  std::string first_sum;
};

Judged test_group(Place& place, const char* name, comm::Comm& group, std::vector<int> members) {
  comm::Comm& world = place.world();
  Judged out{.row = {.check = fmt::format("exchange {}", name), .text = {}},
             .saw_wrong_sums = {},
             .first_sum = {}};
  Tested tested(place, group, std::move(members));
  const int64_t large = std::max<int64_t>(kLarge / group.size(), 1);
  double small_s[int(Way::count)];
  for (const int64_t each : {kSmall, large}) {
    for (int way = 0; way < int(Way::count); ++way)
      if (tested.has(Way(way))) tested.run(Way(way), each, each == kSmall ? 12 : 3);
    if (each == kSmall) std::memcpy(small_s, tested.fastest, sizeof small_s);
  }
  out.row.text = figures(world, tested, small_s, tested.fastest, large * group.size() * 4);

  std::vector<std::set<int>> wrong_blocks;
  std::vector<std::vector<int>> groups;
  std::vector<Wrong> blocks;
  const std::vector<std::string> all_blocks = world.gather_text(tested.blocks.pack()),
                                 all_sums = world.gather_text(tested.sums.pack()),
                                 all_members = world.gather_text(
                                     fmt::format("{}", fmt::join(tested.members(), " ")));
  for (int r = 0; r < place.ranks(); ++r) {
    blocks.push_back(Wrong::unpack(all_blocks[size_t(r)]));
    wrong_blocks.push_back(blocks.back().senders);
    std::vector<int>& members_of = groups.emplace_back();
    for (const std::string& word : base::split(all_members[size_t(r)], ' '))
      members_of.push_back(std::stoi(word));
    const Wrong sums = Wrong::unpack(all_sums[size_t(r)]);
    if (sums.count == 0) continue;
    if (out.first_sum.empty()) out.first_sum = sums.first;
    out.saw_wrong_sums.insert(r);
  }
  for (const int rank : blamed_by_blocks(wrong_blocks, groups)) {
    int at = rank;  // a rank that saw it
    for (int r = 0; r < place.ranks(); ++r)
      if (r != rank && wrong_blocks[size_t(r)].contains(rank)) at = r;
    out.row.bad.push_back(
        {rank, at == rank ? fmt::format("gets wrong values ({})", blocks[size_t(at)].first)
                          : fmt::format("its values arrive wrong at {} ({})", place.name(at),
                                        blocks[size_t(at)].first)});
  }
  return out;
}

}  // namespace

std::set<int> blamed_by_pairs(const std::vector<Pair>& pairs) {
  std::set<int> failing, cleared;
  for (const Pair& p : pairs) {
    std::set<int>& into = p.wrong_at_a || p.wrong_at_b ? failing : cleared;
    into.insert({p.a, p.b});
  }
  for (const int rank : cleared) failing.erase(rank);
  // A suspect is cleared if it saw only right sums and each partner is a suspect that saw a wrong
  // one.
  std::set<int> blamed = failing;
  for (const int rank : failing) {
    bool saw_wrong = false, others_did = true;
    for (const Pair& p : pairs) {
      if (p.a != rank && p.b != rank) continue;
      saw_wrong |= p.a == rank ? p.wrong_at_a : p.wrong_at_b;
      const int partner = p.a == rank ? p.b : p.a;
      others_did &= failing.contains(partner) && (p.a == rank ? p.wrong_at_b : p.wrong_at_a);
    }
    if (!saw_wrong && others_did) blamed.erase(rank);
  }
  return blamed;
}

std::set<int> blamed_by_blocks(const std::vector<std::set<int>>& wrong,
                               const std::vector<std::vector<int>>& members) {
  std::set<int> blamed;
  for (size_t sender = 0; sender < wrong.size(); ++sender) {
    bool everywhere = members[sender].size() > 1;
    for (const int r : members[sender])
      everywhere &= r == int(sender) || wrong[size_t(r)].contains(int(sender));
    if (everywhere) blamed.insert(int(sender));
  }
  for (size_t r = 0; r < wrong.size(); ++r)
    for (const int sender : wrong[r]) {
      // Of two ranks, either may be to blame if the sender itself has the right block.
      const bool unsure =
          members[r].size() == 2 && sender != int(r) && !wrong[size_t(sender)].contains(sender);
      if (!blamed.contains(sender) || unsure) blamed.insert(int(r));
    }
  return blamed;
}

std::vector<Row> check_exchanges(Place& place) {
  const int n = place.ranks();
  if (n == 1) return {{.check = "exchange", .text = "1 rank: there is nothing to exchange"}};
  const comm::Mesh& mesh = place.mesh;
  std::vector<int> all, fsdp, replica;
  for (int r = 0; r < n; ++r) all.push_back(r);
  for (int f = 0; f < mesh.shape.fsdp; ++f)
    fsdp.push_back(mesh.replica_index * mesh.shape.fsdp + f);
  for (int r = 0; r < mesh.shape.replica; ++r)
    replica.push_back(r * mesh.shape.fsdp + mesh.fsdp_index);
  std::vector<Judged> judged;
  judged.push_back(test_group(place, "world", place.world(), all));
  if (mesh.shape.replica > 1)
    judged.push_back(test_group(place, "replica", *mesh.replica, replica));
  if (mesh.shape.fsdp > 1) judged.push_back(test_group(place, "fsdp", *mesh.fsdp, fsdp));

  std::set<int> blamed;
  if (std::any_of(judged.begin(), judged.end(),
                  [](const Judged& j) { return !j.saw_wrong_sums.empty(); }))
    blamed = blamed_by_pairs(exchange_in_pairs(place));
  std::vector<Row> rows;
  for (Judged& j : judged) {
    const std::set<int>& ranks = blamed.empty() ? j.saw_wrong_sums : blamed;
    if (!j.saw_wrong_sums.empty())
      for (const int rank : ranks)
        j.row.bad.push_back(
            {rank,
             fmt::format("{} ({})",
                         blamed.empty() ? "gets a wrong sum, though pairs of ranks add up right"
                         : blamed.size() == 1
                             ? "every sum with it is wrong"
                             : "every sum with it is wrong, by its own fault or another's",
                         j.first_sum)});
    rows.push_back(std::move(j.row));
  }
  return rows;
}

}  // namespace modes::selftest
