// SPDX-License-Identifier: Apache-2.0
// Only builds with plugins have this file (TRAINER_MPI_PLUGINS).
#include "comm/mpi_by_plugin.hpp"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "comm/launcher.hpp"

namespace comm::plugin {
namespace {

// A binary interface of MPI, and the files that have it. Debian's MPICH has a name of its own.
struct Interface {
  const char* name;
  std::array<const char*, 2> libraries;
};
constexpr Interface kOpenMpi = {"openmpi", {"libmpi.so.40", nullptr}},
                    kMpich = {"mpich", {"libmpi.so.12", "libmpich.so.12"}},
                    kStandard = {"abi", {"libmpi_abi.so.1", "libmpi_abi.so.0"}};
constexpr const char* kChoice = "TRAINER_MPI";

// The interfaces that a launcher can serve, the likeliest one first.
std::vector<Interface> interfaces_of(Launcher launcher) {
  switch (launcher) {
    case Launcher::openmpi:
      return {kOpenMpi, kStandard};
    case Launcher::pmi:
      return {kMpich, kStandard};
    default:
      return {kOpenMpi, kMpich, kStandard};
  }
}

// Returns the folders that may hold plugins: beside the program, or beside the folder of a test.
std::vector<std::filesystem::path> folders() {
  std::error_code problem;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", problem);
  const std::filesystem::path here = self.parent_path();
  return {here / "mpi", here.parent_path() / "mpi", here.parent_path() / "lib" / "mpi"};
}

std::string file_of(void* library) {
  link_map* map = nullptr;
  return ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : "?";
}

struct Loaded {
  Table table{};
  std::string text;
};

class Search {
 public:
  // Loads the first interface that exists and fits. The error lists what was tried.
  Loaded first_of(const std::vector<Interface>& all) {
    for (const Interface& one : all)
      for (const char* library : one.libraries)
        if (library && try_one(one.name, library)) return std::move(found_);
    base::fail(
        base::Exit::mesh,
        "found no MPI library for this program, which {} has started: {}; set {}={} to name one",
        launcher_name(launcher()), base::join(tried_, "; "), kChoice,
        "openmpi, mpich or abi (optionally with =FILE)");
  }
  // Loads what $TRAINER_MPI names: an interface, or an interface and a file.
  Loaded chosen(const std::string& choice) {
    const size_t equals = choice.find('=');
    const std::string name = choice.substr(0, equals);
    for (const Interface& one : {kOpenMpi, kMpich, kStandard}) {
      if (name != one.name) continue;
      if (equals == choice.npos) return first_of({one});
      if (try_one(one.name, choice.substr(equals + 1))) return std::move(found_);
      base::fail(base::Exit::mesh, "{}={}: {}", kChoice, choice, base::join(tried_, "; "));
    }
    base::fail(base::Exit::config, "{}={}: the value must begin with openmpi, mpich or abi",
               kChoice, choice);
  }

 private:
  bool try_one(const std::string& name, const std::string& library) {
    const std::string plugin = plugin_of(name);
    if (plugin.empty()) return refuse(library, "no plugin " + name + " beside the program");
    // MPI loads components of its own, which look up its functions among the global symbols.
    void* mpi = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!mpi) return refuse(library, ::dlerror());
    void* made = ::dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!made) return refuse(file_of(mpi), ::dlerror());
    const auto fill = reinterpret_cast<Fill>(::dlsym(made, kFill));
    if (!fill || !fill(&found_.table, sizeof found_.table))
      return refuse(plugin, "this plugin belongs to another version of the program");
    found_.text = fmt::format("{} by plugin {}", file_of(mpi), name);
    return true;
  }
  bool refuse(const std::string& file, const std::string& why) {
    tried_.push_back(why.find(file) == why.npos ? file + ": " + why : why);
    return false;
  }
  static std::string plugin_of(const std::string& name) {
    for (const std::filesystem::path& folder : folders())
      if (std::filesystem::path file = folder / ("libtrainer_mpi_" + name + ".so"); exists(file))
        return file;
    return "";
  }

  Loaded found_;
  std::vector<std::string> tried_;
};

const Loaded& loaded() {
  static const Loaded once = [] {
    const char* choice = std::getenv(kChoice);
    return choice && *choice ? Search().chosen(choice)
                             : Search().first_of(interfaces_of(launcher()));
  }();
  return once;
}

}  // namespace

const Table& table() {
  static const Table& once = loaded().table;
  return once;
}

std::string loaded_text() { return loaded().text; }

}  // namespace comm::plugin
