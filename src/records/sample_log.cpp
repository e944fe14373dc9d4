// SPDX-License-Identifier: Apache-2.0
#include "records/sample_log.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"

namespace records {

namespace {

// Bytes that wait while the disk is full, maybe for many steps: 64 MiB hold a million examples.
constexpr int64_t kMostWaiting = int64_t{64} << 20;

std::string prefix_of(int64_t from) { return fmt::format("from{:010}", from); }

}  // namespace

SampleLog::SampleLog(comm::Comm& world, const std::string& directory, int64_t from,
                     const data::Mixture& mixture)
    : mixture_(mixture),
      lines_(fmt::format("{}/{}.rank{:05}.tsv", directory, prefix_of(from), world.rank()),
             kMostWaiting) {
  const std::string prefix = prefix_of(from);
  comm::on_first(world, [&] {
    for (const std::string& name : io::list_directory(directory))
      if (name.starts_with("from") && name.substr(0, prefix.size()) >= prefix)
        io::remove_file(directory + "/" + name);
    return std::string();
  });
}

void SampleLog::keep() {
  if (lines_.keep())
    base::log::warning(
        "{} was removed while this job writes to it: made again, from the next step on",
        lines_.path());
}

void SampleLog::write(int64_t step, const data::Batch& batch) {
  std::string text;
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    const data::Dataset& set = mixture_.dataset(batch.parts[i]);
    text += fmt::format("{}\t{}\t{}\t{}\n", step, batch.positions[i], set.name(),
                        base::one_line(set.key(batch.indices[i])));
  }
  lines_.append(text);
}

}  // namespace records
