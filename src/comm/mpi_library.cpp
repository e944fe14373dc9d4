// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi_library.hpp"

#include <array>
#include <cctype>
#include <utility>

#include "base/error.hpp"
#include "comm/comm.hpp"
#include "comm/mpi.hpp"

namespace comm {
namespace {

// An MPI made from MPICH may also name MPICH in its text, so MPICH comes last.
constexpr std::array<std::pair<const char*, const char*>, 5> kNames = {
    {{"Open MPI", "openmpi"},
     {"Intel(R) MPI", "intelmpi"},
     {"CRAY MPICH", "craympich"},
     {"MVAPICH", "mvapich"},
     {"MPICH", "mpich"}}};

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Returns the first number with a point: "4.1.4" of "v4.1.4, package: ...".
std::string version_in(const std::string& text) {
  for (size_t begin = 0; begin < text.size(); ++begin) {
    if (!is_digit(text[begin]) || (begin > 0 && is_digit(text[begin - 1]))) continue;
    size_t end = begin;
    while (end < text.size() && (is_digit(text[end]) || text[end] == '.')) ++end;
    const std::string found = text.substr(begin, end - begin);
    if (const size_t point = found.find('.'); point != found.npos && point + 1 < found.size())
      return found;
  }
  return "unknown";
}

}  // namespace

MpiLibrary mpi_library_of(const std::string& text) {
  for (const auto& [part, name] : kNames)
    if (const size_t at = text.find(part); at != text.npos)
      return {name, version_in(text.substr(at))};
  return {"mpi", version_in(text)};
}

const MpiLibrary& mpi_library() {
  static const MpiLibrary library = []() -> MpiLibrary {
    std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
    int length = 0;
    try {
      if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) length = 0;
    } catch (const base::Error&) {  // a program with plugins finds no MPI
      return {"mpi", "none"};
    }
    text.resize(size_t(length));
    return mpi_library_of(text);
  }();
  return library;
}

std::string mpi_version() {
  const MpiLibrary& library = mpi_library();
  return library.name == "openmpi" ? library.version : library.name + " " + library.version;
}

}  // namespace comm
