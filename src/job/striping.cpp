// SPDX-License-Identifier: Apache-2.0
#include "job/striping.hpp"

#include <charconv>
#include <optional>

#include "base/log.hpp"
#include "base/text.hpp"
#include "job/command.hpp"

namespace job {
namespace log = base::log;

namespace {

constexpr double kPatience_s = 60;

struct Reply {
  CommandEnd end;
  std::string words;
};

Reply run_lfs(const std::string& command) {
  Reply reply;
  reply.end = run_command(
      {.text = command, .limit_s = kPatience_s},
      [&reply](std::string_view piece) { reply.words += piece; }, [] { return false; });
  return reply;
}

// For the shell.
std::string in_quotes(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string words_of(const Reply& reply) {
  const std::string words = base::one_line(std::string(base::trim(reply.words)));
  return words.empty() ? reply.end.text() : fmt::format("{}: {}", reply.end.text(), words);
}

// Returns the number of stripes that new files get; warns if lfs does not say.
std::optional<int64_t> stripes_of(const std::string& folder) {
  const std::string command = "lfs getstripe -d -c " + in_quotes(folder);
  const Reply reply = run_lfs(command);
  const std::string words(base::trim(reply.words));
  int64_t number = 0;
  const auto [end, error] = std::from_chars(words.data(), words.data() + words.size(), number);
  if (reply.end.good() && error == std::errc() && end == words.data() + words.size()) return number;
  log::warning("checkpoint.stripes: {}: {}; the folder stays as it is", command, words_of(reply));
  return {};
}

}  // namespace

void stripe_folder(const std::string& folder, int64_t stripes) {
  if (!run_lfs("command -v lfs").end.good()) {
    log::line("disk     {} stays without checkpoint.stripes = {}: there is no lfs here", folder,
              stripes);
    return;
  }
  const std::optional<int64_t> before = stripes_of(folder);
  if (!before) return;
  if (*before == stripes) {
    log::line("disk     {} has {} stripes", folder, stripes);
    return;
  }
  const std::string command = fmt::format("lfs setstripe -c {} {}", stripes, in_quotes(folder));
  if (const Reply set = run_lfs(command); !set.end.good()) {
    log::warning("checkpoint.stripes: {}: {}; the folder stays as it is", command, words_of(set));
    return;
  }
  const std::optional<int64_t> now = stripes_of(folder);
  if (now && *now != stripes)
    log::warning("checkpoint.stripes: {} was asked for {} stripes and has {}", folder, stripes,
                 *now);
  else if (now)
    log::line("disk     {} has {} stripes, set by lfs; before {}", folder, *now, *before);
}

}  // namespace job
