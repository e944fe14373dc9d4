// SPDX-License-Identifier: Apache-2.0
#include "host/threads.hpp"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <map>
#include <vector>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "comm/launcher.hpp"

namespace host {
namespace {

std::set<int> bound_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::set<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &set)) cpus.insert(i);
  if (cpus.empty()) cpus.insert(0);
  return cpus;
}

// Returns the cores of this node that the job may use. A batch job may have only a part of the
// node, which its environment gives in CPUs.
int cores_of_node() {
  const int online = int(sysconf(_SC_NPROCESSORS_ONLN));
  std::set<int> cpus;
  for (int i = 0; i < online; ++i) cpus.insert(i);
  const int cores = int(cores_of(cpus).size());
  for (const char* name : {"SLURM_CPUS_ON_NODE", "NCPUS"})
    if (const char* text = std::getenv(name))
      if (int n = std::atoi(text); n > 0) return std::max(1, std::min(n, online) * cores / online);
  return cores;
}

}  // namespace

void free_main_thread() {
  if (omp_get_proc_bind() == omp_proc_bind_false || omp_get_num_places() == 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> cores(size_t(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, cores.data());
    for (int core : cores) CPU_SET(size_t(core), &set);
  }
  sched_setaffinity(0, sizeof set, &set);
}

std::set<int> cores_of(const std::set<int>& cpus, const std::string& sysfs) {
  std::set<int> cores;
  for (int cpu : cpus) {
    // The file holds for example "0,64" or "0-1".
    std::ifstream file(fmt::format("{}/cpu{}/topology/thread_siblings_list", sysfs, cpu));
    int first = cpu;
    cores.insert(file >> first ? first : cpu);
  }
  return cores;
}

int choose_threads(int64_t asked, int local_size) {
  if (asked > 0) return int(asked);
  const std::set<int> cpus = bound_cpus();
  const int cores = int(cores_of(cpus).size());
  // A rank that is bound to fewer CPUs than the machine has owns them. Unbound ranks share all CPUs
  // of the node.
  if (int(cpus.size()) < sysconf(_SC_NPROCESSORS_ONLN) && local_size > 1) return cores;
  return std::max(1, cores / std::max(1, local_size));
}

void start_threads(int threads) {
#pragma omp parallel num_threads(threads)
  if (omp_get_thread_num() > 0) base::name_compute_thread(omp_get_thread_num());
}

std::vector<std::string> binding_advice(const std::vector<RankCores>& ranks) {
  std::map<std::string, std::vector<const RankCores*>> hosts;
  for (const RankCores& r : ranks) hosts[r.host].push_back(&r);
  std::map<std::string, std::vector<std::string>> problems;  // problem -> hosts that have it
  for (const auto& [host, here] : hosts) {
    std::set<int> used;
    size_t bound = 0;
    int threads = 0;
    for (const RankCores* r : here) {
      used.insert(r->cores.begin(), r->cores.end());
      bound += r->cores.size();
      threads += r->threads;
    }
    const int n = int(here.size()), node = std::max(here.front()->node_cores, int(used.size())),
              each = node / n;
    const std::string who =
        fmt::format("{} rank{} of {} thread{}", n, n == 1 ? "" : "s", here.front()->threads,
                    here.front()->threads == 1 ? "" : "s");
    const std::string flags = comm::binding_command(comm::launcher(), std::max(1, each));
    if (threads > int(used.size())) {
      if (each >= 1 && int(used.size()) < node)
        problems[fmt::format("{}: on only {} of {} cores; {} gives each thread its own core, if "
                             "run.threads is not larger than the cores of a rank",
                             who, used.size(), node, flags)]
            .push_back(host);
      else
        problems[fmt::format("{}: on {} core{}, so threads wait for each other; start fewer ranks, "
                             "or lower run.threads",
                             who, used.size(), used.size() == 1 ? "" : "s")]
            .push_back(host);
    } else if (threads <= node / 2 && int(used.size()) <= node / 2) {
      problems[fmt::format("{}: bound to {} of {} cores, the others stay idle; {} uses {} of them",
                           who, used.size(), node, flags, each * n)]
          .push_back(host);
    } else if (n > 1 && bound > used.size()) {
      problems[fmt::format(
                   "{}: not bound, they may move about {} cores; {} keeps each where its memory is",
                   who, used.size(), flags)]
          .push_back(host);
    }
  }
  std::vector<std::string> lines;
  for (const auto& [what, where] : problems)
    lines.push_back(
        fmt::format("{}{}: {}", where.front(),
                    where.size() > 1 ? fmt::format(" and {} more", where.size() - 1) : "", what));
  return lines;
}

std::string omp_threads_advice(const char* value, int threads) {
  if (!value || !*value) return "";
  int asked = 0;
  // The value may be a list, one number per nesting level, such as "4,2".
  const std::string_view first =
      base::trim(std::string_view(value).substr(0, std::string_view(value).find(',')));
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), asked);
  const bool number = error == std::errc() && end == first.data() + first.size() && asked > 0;
  if (number && asked == threads) return "";
  return fmt::format(
      "OMP_NUM_THREADS={} is {}not used: run.threads sets the threads of a rank (here {})",
      base::quoted(value, 40), number ? "" : "no number of threads, and ", threads);
}

std::vector<RankCores> gather_cores(comm::Comm& world, const std::string& host, int threads) {
  const std::set<int> cores = cores_of(bound_cpus());
  std::vector<std::string> all = world.gather_text(fmt::format(
      "{} {} {} {}", host, cores_of_node(), threads, fmt::join(cores.begin(), cores.end(), ",")));
  std::vector<RankCores> ranks;
  for (const std::string& text : all) {
    std::vector<std::string> word = base::split(text, ' ');
    RankCores r{.host = word.at(0),
                .cores = {},
                .node_cores = std::atoi(word.at(1).c_str()),
                .threads = std::atoi(word.at(2).c_str())};
    for (const std::string& core : base::split(word.at(3), ','))
      r.cores.insert(std::atoi(core.c_str()));
    ranks.push_back(std::move(r));
  }
  return ranks;
}

void print_binding(comm::Comm& world, const std::string& host, int threads) {
  const std::vector<RankCores> ranks = gather_cores(world, host, threads);
  if (world.rank() != 0) return;
  for (const std::string& line : binding_advice(ranks)) base::log::line("binding  {}", line);
  const std::string advice = omp_threads_advice(std::getenv("OMP_NUM_THREADS"), threads);
  if (advice.find("no number") != advice.npos)
    base::log::warning("{}", advice);
  else if (!advice.empty())
    base::log::line("threads  {}", advice);
}

}  // namespace host
