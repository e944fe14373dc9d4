// --mode show: a batch as the model would see it, after all ops, in a file to look at (tools/show_batch draws it).
#pragma once

#include "train/recipe.hpp"

namespace modes {

// Writes RUN/show.h5 and prints a line per example. Needs neither ranks nor the lock of the run directory.
//   /model/NAME      every input of the model, [n, ...]: image, labels, weights (0 = carries no loss), decoder_ids
//   (what
//                    the decoder is fed; >= attribute mask_id is the mask token), causal (0 = predicted in parallel)
//   /fields/NAME     every field of the data that the model does not take
//   /examples        JSON text: position, data set, key, caption (labels as text), and one text per token of labels and
//                    decoder_ids
void show_batch(const train::Recipe& recipe);

}  // namespace modes
