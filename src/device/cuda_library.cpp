// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_library.hpp"

#include <dlfcn.h>

#include <map>
#include <string>

#include "base/error.hpp"

namespace device {
namespace {

void* open_library(const std::string& file) {
  // The loader's own directories come first (LD_LIBRARY_PATH, perhaps with wheels), then the
  // toolkit's default directory.
  for (const std::string& path : {file, "/usr/local/cuda/lib64/" + file})
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  base::fail(
      base::Exit::mesh,
      "{} cannot be opened ({}): it is neither where LD_LIBRARY_PATH and the system's loader look "
      "nor in /usr/local/cuda/lib64. run.device = \"cuda\" needs it; run.device = \"cpu\" does not",
      file, dlerror());
}

}  // namespace

void* library_function(const char* file, const char* function) {
  static std::map<std::string, void*> libraries;
  auto [it, added] = libraries.try_emplace(file);
  if (added) it->second = open_library(file);
  void* address = dlsym(it->second, function);
  if (!address)
    base::fail(base::Exit::mesh,
               "{} has no {}: it is not the version that this program was built for", file,
               function);
  return address;
}

}  // namespace device
