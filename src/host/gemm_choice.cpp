// SPDX-License-Identifier: Apache-2.0
#include "host/gemm_choice.hpp"

#include <filesystem>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/span.hpp"
#include "io/waiting.hpp"
#include "kernels/gemm_search.hpp"

namespace host {
namespace log = base::log;
namespace {

// Returns the choices in the file if its first line names this platform, otherwise "".
std::string choices_in(const std::string& file, const std::string& platform) {
  if (file.empty() || !std::filesystem::exists(file)) return "";
  const std::string text = io::read_file(file), first = platform + "\n";
  if (text.starts_with(first)) return text.substr(first.size());
  log::warning(
      "{} is for {}, but this job runs on {}: products are timed anew, and bits will differ", file,
      text.substr(0, text.find('\n')), platform);
  return "";
}

// Returns true if all ranks have rank 0's platform. Otherwise throws if `needed`, or returns false.
bool agree_on_platform(comm::Comm& world, const std::string& mine, bool needed) {
  const std::vector<std::string> all = world.gather_text(mine);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::string text = fmt::format("rank 0 has {}, rank {} has {}", all[0], rank, all[rank]);
    if (needed)
      throw base::Error(base::Exit::mesh,
                        "run.gemm_search = \"on\" needs the same GPU and cuBLASLt at all ranks: " +
                            text + "; \"off\" does not need them",
                        true);
    if (world.rank() == 0)
      log::warning("{}: products take the library's first proposals (run.gemm_search)", text);
    return false;
  }
  return true;
}

}  // namespace

std::function<void(device::Queue&)> product_chooser(comm::Comm& world, const std::string& file,
                                                    const ChooserOptions& options) {
  return [&world, file, options](device::Queue& queue) {
    const base::Span span("choose products");
    base::Stopwatch watch;
    const std::string platform = kernels::gemm_platform();
    if (!agree_on_platform(world, platform, options.needs_one_platform)) return;
    kernels::GemmSearch found;
    if (world.rank() == 0) {
      found.choices = choices_in(file, platform);
      if (options.times) found = kernels::search_gemms(found.choices, queue);
      if (options.writes && !file.empty() && found.timed > 0)
        io::write_or_wait(file, platform + "\n" + found.choices);
    }
    kernels::use_gemm_choices(world.broadcast_text(found.choices, 0));
    if (!options.times) return;
    log::line(
        "products {} shapes, {} of them timed now: {} take another algorithm than the first "
        "proposed, one call of each {:.3g} -> {:.3g} ms{}; s={:.1f}{}",
        found.shapes, found.timed, found.changed, 1e3 * found.first_s, 1e3 * found.chosen_s,
        found.sums
            ? fmt::format("; bias gradients go into {} of {} kernels", found.together, found.sums)
            : "",
        watch.seconds(),
        found.kept ? fmt::format("; {} choices of other jobs, for other shapes, stay in {}",
                                 found.kept, file)
                   : "");
  };
}

}  // namespace host
