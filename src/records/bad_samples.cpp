// SPDX-License-Identifier: Apache-2.0
#include "records/bad_samples.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"

namespace records {
namespace {

constexpr int64_t kMaxWarnings = 10;  // per attempt; the list names all bad samples

}  // namespace

BadSamples::BadSamples(comm::Comm& world, const std::string& path, double max_fraction,
                       std::map<std::string, int64_t> sizes)
    : world_(world),
      path_(path),
      lines_(path),
      max_fraction_(max_fraction),
      sizes_(std::move(sizes)) {
  std::string text = comm::on_first(world, [&] {
    if (path.empty() || !io::exists(path)) return std::string();
    std::string all = io::read_file(path), whole = all.substr(0, all.rfind('\n') + 1);
    if (whole != all) io::write_file_atomically(path, whole);  // a crash cut the last line
    return whole;
  });
  int64_t strange = 0;
  for (const std::string& line : base::split(text, '\n'))
    if (!line.empty() && !is_entry(line))
      ++strange;
    else if (!line.empty())
      add(line);
  if (strange > 0 && world.rank() == 0)
    base::log::warning(
        "{}: {} lines do not name samples of this deck's data sets and are not counted", path,
        strange);
  check();
}

bool BadSamples::is_entry(const std::string& line) const {
  std::vector<std::string> parts = base::split(line, '\t');
  return parts.size() == 3 && !parts[1].empty() && sizes_.contains(parts[0]);
}

bool BadSamples::add(const std::string& line) {
  std::vector<std::string> parts = base::split(line, '\t');
  return parts.size() >= 2 && known_[parts[0]].insert(parts[1]).second;
}

int64_t BadSamples::agree() {
  int64_t replaced = world_.sum(log_->replaced);
  if (replaced == 0) return 0;
  std::string mine;
  for (const data::BadSample& b : log_->found)
    mine += fmt::format("{}\t{}\t{}\n", b.dataset, b.key, b.why);
  *log_ = {};
  std::string fresh;
  for (const std::string& text : world_.gather_text(mine))
    for (const std::string& line : base::split(text, '\n')) {
      if (line.empty() || !add(line)) continue;
      fresh += line + "\n";
      if (world_.rank() != 0 || warned_ > kMaxWarnings) continue;
      std::vector<std::string> parts = base::split(line, '\t');
      if (++warned_ <= kMaxWarnings)
        base::log::warning(
            "data.{}: {}: {}; a fixed substitute is used; {} of {} samples are bad so far",
            parts[0], parts[1], parts[2], known_[parts[0]].size(),
            base::with_commas(sizes_[parts[0]]));
      else
        base::log::warning("data: further bad samples are listed only {}",
                           path_.empty() ? "by --mode train" : "in " + path_);
    }
  if (world_.rank() == 0 && !fresh.empty() && !path_.empty()) {
    lines_.keep();  // a user may have removed it
    lines_.append(fresh);
    lines_.sync();
  }
  check();
  return replaced;
}

void BadSamples::check() const {
  for (const auto& [name, keys] : known_) {
    auto size = sizes_.find(name);
    if (size == sizes_.end() || double(keys.size()) <= max_fraction_ * double(size->second))
      continue;
    base::fail(
        base::Exit::data,
        "data.{}: {} of {} samples cannot be used, more than loader.max_bad_sample_fraction = {:g} "
        "allows; they are listed {}: repair them (and remove that list), or raise the key",
        name, base::with_commas(int64_t(keys.size())), base::with_commas(size->second),
        max_fraction_, path_.empty() ? "above" : "in " + path_);
  }
}

int64_t BadSamples::known() const {
  int64_t sum = 0;
  for (const auto& [name, keys] : known_) sum += int64_t(keys.size());
  return sum;
}

}  // namespace records
