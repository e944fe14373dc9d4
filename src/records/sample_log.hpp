// SPDX-License-Identifier: Apache-2.0
// Which example every rank trained on, for those who want to see it (log.samples):
//   RUN/logs/samples/from0000000400.rank00002.tsv     of the attempt that continued from step 400
//       step <tab> position in the stream <tab> data set <tab> key of the sample (a substitute's
//       own)
// A step that was done again counts as the attempt did it that continued from the latest step
// before it: files of attempts that continued from later steps are removed when the run goes back
// behind them.
#pragma once

#include <string>

#include "comm/comm.hpp"
#include "data/stream/loader.hpp"
#include "io/files.hpp"

namespace records {

class SampleLog {
 public:
  // All ranks call. `from`: the step the attempt continues from.
  SampleLog(comm::Comm& world, const std::string& directory, int64_t from,
            const data::Mixture& mixture);
  // Makes this rank's file again if it was removed.
  void keep();
  void write(int64_t step, const data::Batch& batch);

 private:
  const data::Mixture& mixture_;
  io::File file_;
};

}  // namespace records
