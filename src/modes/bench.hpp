// --mode bench: the deck's training step, timed, with the time of each op.
#pragma once

#include "train/recipe.hpp"

namespace modes {

// Writes no file. The last line of output is one JSON object for comparison with other programs:
// {"ms_per_step": .., "workload": run.name, "dtype": "f32", "batch": .., "peak_rss_mib": ..}
void run_bench(comm::Session& session, const train::Recipe& recipe, config::Deck& deck, const std::string& mesh_selector);

}  // namespace modes
