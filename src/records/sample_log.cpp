// SPDX-License-Identifier: Apache-2.0
#include "records/sample_log.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"

namespace records {

SampleLog::SampleLog(comm::Comm& world, const std::string& directory, int64_t from,
                     const data::Mixture& mixture)
    : mixture_(mixture) {
  std::string prefix = fmt::format("from{:010}", from);
  comm::on_first(world, [&] {
    io::make_directories(directory);
    for (const std::string& name : io::list_directory(directory))
      if (name.starts_with("from") && name.substr(0, prefix.size()) >= prefix)
        io::remove_file(directory + "/" + name);
    return std::string();
  });
  file_ = io::File(fmt::format("{}/{}.rank{:05}.tsv", directory, prefix, world.rank()),
                   io::File::Mode::append);
}

void SampleLog::keep() {
  if (file_.in_place()) return;
  const std::string path = file_.path();
  io::make_directories(io::parent_of(path));
  file_ = io::File(path, io::File::Mode::append);
  base::log::warning(
      "{} was removed while this job writes to it: made again, from the next step on", path);
}

void SampleLog::write(int64_t step, const data::Batch& batch) {
  std::string text;
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    const data::Dataset& set = mixture_.dataset(batch.parts[i]);
    text += fmt::format("{}\t{}\t{}\t{}\n", step, batch.positions[i], set.name(),
                        base::one_line(set.key(batch.indices[i])));
  }
  file_.append(text);
}

}  // namespace records
