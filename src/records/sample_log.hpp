// SPDX-License-Identifier: Apache-2.0
// Logs which example every rank trained on (log.samples):
//   RUN/logs/samples/from0000000400.rank00002.tsv     of the attempt that continued from step 400
//       step <tab> position in the stream <tab> data set <tab> key of the sample (a substitute's
//       own)
// If several attempts did a step, the one that continued from the latest earlier step counts. So
// when the run goes back, the files of attempts that continued from later steps are removed.
#pragma once

#include <string>

#include "comm/comm.hpp"
#include "data/stream/loader.hpp"
#include "io/waiting.hpp"

namespace records {

class SampleLog {
 public:
  // All ranks call. `from` is the step that the attempt continues from.
  SampleLog(comm::Comm& world, const std::string& directory, int64_t from,
            const data::Mixture& mixture);
  // Makes this rank's file again if it was removed.
  void keep();
  void write(int64_t step, const data::Batch& batch);

 private:
  const data::Mixture& mixture_;
  io::WaitingLines lines_;
};

}  // namespace records
