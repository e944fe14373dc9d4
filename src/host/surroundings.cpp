// SPDX-License-Identifier: Apache-2.0
#include "host/surroundings.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/launcher.hpp"
#include "host/node_memory.hpp"

extern char** environ;

namespace host {
namespace {

constexpr std::array kPrefixes = {
    "OMP_",    "GOMP_",   "KMP_",   "OMPI_",      "PMIX_MCA_", "PRTE_MCA_", "UCX_",
    "NCCL_",   "SLURM_",  "PBS_",   "TRAINER_",   "CUDA_",     "CUBLAS",    "CUDNN_",
    "DNNL_",   "ONEDNN_", "MKL_",   "HDF5_",      "FI_",       "PSM2_",     "NVIDIA_",
    "MALLOC_", "ROMIO_",  "I_MPI_", "MPIR_CVAR_", "MPICH_"};
constexpr std::array kNames = {"LD_LIBRARY_PATH", "LD_PRELOAD", "LOADEDMODULES", "TMPDIR"};
constexpr std::array kSecrets = {"TOKEN", "SECRET",     "PASS",   "KEY",
                                 "JWT",   "CREDENTIAL", "COOKIE", "AUTH"};

template <size_t N>
bool begins_with_any(std::string_view name, const std::array<const char*, N>& beginnings) {
  return std::ranges::any_of(beginnings, [&](const char* b) { return name.starts_with(b); });
}

bool matters(std::string_view name) {
  return (begins_with_any(name, kPrefixes) || std::ranges::find(kNames, name) != kNames.end()) &&
         !comm::is_of_launcher(name);
}

bool is_secret(std::string_view name) {
  return std::ranges::any_of(kSecrets, [&](const char* s) { return name.find(s) != name.npos; });
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string first_line_of(const std::string& path) {
  const std::string text = text_of(path);
  return std::string(base::trim(text.substr(0, text.find('\n'))));
}

// Returns the paths where the control groups of this process may hold a file: in its own group and
// in all groups above. Covers version 2 and one controller of version 1.
std::vector<std::string> group_files(const std::string& controller, const std::string& file_v2,
                                     const std::string& file_v1) {
  std::vector<std::string> out;
  for (const std::string& line : base::split(text_of("/proc/self/cgroup"), '\n')) {
    const std::vector<std::string> parts = base::split(line, ':');
    if (parts.size() < 3) continue;
    const bool v2 = parts[1].empty();
    if (!v2 && parts[1] != controller) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
    const std::string& name = v2 ? file_v2 : file_v1;
    for (std::filesystem::path at = parts[2];; at = at.parent_path()) {
      out.push_back(root + (at == "/" ? "" : at.string()) + "/" + name);
      if (!at.has_relative_path()) break;
    }
  }
  return out;
}

// Returns the least number in these files; 0 if none has one.
int64_t least_of(const std::vector<std::string>& files) {
  constexpr int64_t kNoLimit = int64_t{1} << 60;  // version 1 writes a huge number
  int64_t least = 0;
  for (const std::string& file : files) {
    const std::string line = first_line_of(file);
    int64_t value = 0;
    const auto end = std::from_chars(line.data(), line.data() + line.size(), value);
    if (end.ec == std::errc() && value > 0 && value < kNoLimit)
      least = least == 0 ? value : std::min(least, value);
  }
  return least;
}

int64_t group_limit_bytes() {
  static const int64_t limit =
      least_of(group_files("memory", "memory.max", "memory.limit_in_bytes"));
  return limit;
}

std::string limit_text(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : fmt::format("{}", value);
}

// libhdf5.so.103.3.0 -> {libhdf5, so.103.3.0}; libfoo-2.1.so -> {libfoo-2.1, so}
std::pair<std::string, std::string> name_and_version(const std::string& file) {
  const size_t at = file.find(".so");
  return at == file.npos ? std::pair{file, std::string()}
                         : std::pair{file.substr(0, at), file.substr(at + 1)};
}

int add_library(dl_phdr_info* info, size_t, void* to) {
  if (!info->dlpi_name || info->dlpi_name[0] != '/') return 0;
  std::error_code problem;
  const std::filesystem::path real = std::filesystem::canonical(info->dlpi_name, problem);
  const auto [name, version] =
      name_and_version((problem ? std::filesystem::path(info->dlpi_name) : real).filename());
  (*static_cast<Facts*>(to))["library." + name] = version;
  return 0;
}

// The note that the linker writes into a program: NT_GNU_BUILD_ID.
int find_build_id(dl_phdr_info* info, size_t, void* to) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const char* at = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    for (const char* end = at + segment.p_memsz; at + sizeof(ElfW(Nhdr)) <= end;) {
      ElfW(Nhdr) note;
      std::memcpy(&note, at, sizeof note);
      const char* name = at + sizeof note;
      const char* content = name + (note.n_namesz + 3) / 4 * 4;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0)
        for (ElfW(Word) k = 0; k < note.n_descsz; ++k)
          *static_cast<std::string*>(to) += fmt::format("{:02x}", uint8_t(content[k]));
      at = content + (note.n_descsz + 3) / 4 * 4;
    }
  }
  return 1;  // the program itself comes first
}

std::string cpu_model() {
  for (const std::string& line : base::split(text_of("/proc/cpuinfo"), '\n'))
    if (line.starts_with("model name"))
      return std::string(base::trim(line.substr(line.find(':') + 1)));
  return "";
}

}  // namespace

void add_environment(const std::vector<std::string>& environment, Facts& facts) {
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    if (equals == variable.npos) continue;
    const std::string name = variable.substr(0, equals);
    if (matters(name))
      facts["env." + name] =
          is_secret(name) ? "(not shown)" : base::one_line(variable.substr(equals + 1), 500);
  }
}

std::vector<std::string> own_environment() {
  std::vector<std::string> out;
  for (char** one = environ; one && *one; ++one) out.emplace_back(*one);
  return out;
}

void add_limits(Facts& facts) {
  const std::pair<const char*, __rlimit_resource_t> kLimits[] = {
      {"address_space", RLIMIT_AS}, {"stack", RLIMIT_STACK},     {"open_files", RLIMIT_NOFILE},
      {"processes", RLIMIT_NPROC},  {"locked", RLIMIT_MEMLOCK},  {"core", RLIMIT_CORE},
      {"cpu_s", RLIMIT_CPU},        {"file_size", RLIMIT_FSIZE}, {"data", RLIMIT_DATA}};
  for (const auto& [name, resource] : kLimits)
    if (rlimit limit{}; ::getrlimit(resource, &limit) == 0)
      facts[fmt::format("limit.{}", name)] = limit_text(limit.rlim_cur);
  if (const int64_t bytes = group_limit_bytes(); bytes > 0)
    facts["limit.group_memory"] = fmt::format("{}", bytes);
  if (const int64_t most = least_of(group_files("pids", "pids.max", "pids.max")); most > 0)
    facts["limit.group_processes"] = fmt::format("{}", most);
  for (const std::string& file : group_files("cpu", "cpu.max", "cpu.cfs_quota_us"))
    if (const std::string quota = first_line_of(file);
        !quota.empty() && !quota.starts_with("max") && !quota.starts_with("-1"))
      facts["limit.group_cpu"] = quota;
}

void add_libraries(Facts& facts) { ::dl_iterate_phdr(add_library, &facts); }

void add_machine(Facts& facts) {
  utsname system{};
  if (::uname(&system) == 0)
    facts["machine.kernel"] = fmt::format("{} {}", system.sysname, system.release);
  facts["machine.cpu"] = cpu_model();
  facts["machine.cpus"] = fmt::format("{}", ::sysconf(_SC_NPROCESSORS_ONLN));
  if (const NodeMemory node = node_memory(); node.total_kib > 0)
    facts["machine.memory_mib"] = fmt::format("{}", node.total_kib >> 10);
}

std::string program_digest() {
  std::string id;
  ::dl_iterate_phdr(find_build_id, &id);
  return id.empty() ? fmt::format("{:016x}", base::xxh3(text_of("/proc/self/exe"))) : id;
}

int64_t most_memory_bytes() {
  const int64_t node = node_memory().total_kib << 10, group = group_limit_bytes();
  return group > 0 && (node == 0 || group < node) ? group : node;
}

int64_t group_memory_bytes() {
  const std::vector<std::string> files =
      group_files("memory", "memory.current", "memory.usage_in_bytes");
  for (const std::string& file : files)
    if (const int64_t bytes = least_of({file}); bytes > 0) return bytes;
  return 0;
}

}  // namespace host
