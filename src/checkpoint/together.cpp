#include "checkpoint/together.hpp"

#include <new>
#include <optional>

#include "io/files.hpp"

namespace checkpoint {

// 'T' + result, or 'E' + exit code as one byte + what happened.
std::string outcome(const std::function<std::string()>& work) {
  auto failed = [](base::Exit code, const char* what) { return std::string{'E', char(code)} + what; };
  try {
    return "T" + work();
  } catch (const io::Failure& e) {
    return failed(base::Exit::checkpoint, e.what());
  } catch (const base::Error& e) {
    return failed(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return failed(base::Exit::internal, "out of memory");
  } catch (const std::exception& e) {
    return failed(base::Exit::internal, e.what());
  }
}

std::vector<std::string> agree_on(comm::Comm& comm, const std::string& mine) {
  std::vector<std::string> all = comm.gather_text(mine);
  std::optional<size_t> first;
  std::string others;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] != 'E') continue;
    if (first)
      others += fmt::format("{}{}", others.empty() ? "; also failed: rank " : ", ", rank);
    else
      first = rank;
  }
  if (first) {
    const std::string& e = all[*first];
    std::string where = all.size() > 1 ? fmt::format("rank {}: ", *first) : "";
    throw base::Error(base::Exit(static_cast<unsigned char>(e[1])), where + e.substr(2) + others, true, int(*first));
  }
  for (std::string& text : all) text.erase(0, 1);
  return all;
}

std::string on_first(comm::Comm& comm, const std::function<std::string()>& work) {
  std::string text = comm.broadcast_text(comm.rank() == 0 ? outcome(work) : "", 0);
  if (text[0] == 'E') throw base::Error(base::Exit(static_cast<unsigned char>(text[1])), text.substr(2), true);
  return text.substr(1);
}

}  // namespace checkpoint
