// SPDX-License-Identifier: Apache-2.0
#include "job/call_check.hpp"

#include "base/text.hpp"
#include "job/verdict.hpp"

namespace job {
namespace {

// Converts the calls of a rank to lines; standing_of() reads them back.
std::string text_of(const Flight& flight) {
  std::string text = fmt::format("{}\n{}\n{}\n", flight.host, flight.phase, flight.step);
  for (const FlightExchange& e : flight.calls) text += fmt::format("{} {}\n", e.call, e.text);
  return text;
}
Standing standing_of(int rank, const std::string& text) {
  const std::vector<std::string> lines = base::split(text, '\n');
  Flight flight;
  flight.host = lines.at(0);
  flight.phase = lines.at(1);
  flight.step = std::stoll(lines.at(2));
  for (size_t i = 3; i < lines.size(); ++i)
    if (const size_t space = lines[i].find(' '); space != std::string::npos)
      flight.calls.push_back(
          {.call = std::stoull(lines[i]), .text = lines[i].substr(space + 1), .ended = true});
  if (!flight.calls.empty()) flight.last = flight.oldest = flight.calls.back();
  return {.rank = rank, .host = flight.host, .flight = flight};
}

}  // namespace

void refuse_unlike_calls(comm::Comm& world) {
  std::vector<Standing> standing;
  for (const std::string& text : world.gather_text(text_of(own_flight())))
    standing.push_back(standing_of(int(standing.size()), text));
  const Verdict unlike = find_unlike(standing);
  throw base::Error(
      base::Exit::internal,
      fmt::format(
          "the ranks have called different exchanges, so what they hold is "
          "wrong. This is a bug of the program or of the MPI library: {}",
          unlike.rank >= 0 ? unlike.text : "the calls that differ are too old to be on record"),
      true);
}

}  // namespace job
