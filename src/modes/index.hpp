// --mode index: reads every sample of data sets once, through all their ops, and says what is there: indexes are made,
// broken samples named, sizes of images and lengths of captions counted.
#pragma once

#include "train/recipe.hpp"

namespace modes {

// Prints the report and writes RUN/datasets.json. Returns Exit::data if any sample is broken, else Exit::finished.
// Needs neither ranks nor the lock of the run directory.
base::Exit report_datasets(const train::Recipe& recipe);

}  // namespace modes
