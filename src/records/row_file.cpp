// SPDX-License-Identifier: Apache-2.0
#include "records/row_file.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/together.hpp"
#include "device/types.hpp"

namespace records {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMadeFrom = "/made_from";
constexpr int64_t kSlotBytes = 64;  // of a slot of the progress file

int64_t element_bytes(const RowColumn& column) {
  if (column.type == io::H5Type::text) return std::max<int64_t>(column.text_bytes, 1);
  if (column.type == io::H5Type::half) return 2;
  const auto type = io::dtype_of(column.type);
  CHECK(type, "{}: no rows of type {}", column.name, name_of(column.type));
  return device::size_of(*type);
}

std::string slot_text(int64_t rows) {
  const std::string text = fmt::format("rows={:020}", rows);
  return fmt::format("{:<{}}\n", fmt::format("{} xxh3={:016x}", text, base::xxh3(text)),
                     kSlotBytes - 1);
}

// Returns the rows of a slot; -1 if it was never written or is torn.
int64_t rows_of(std::string_view slot) {
  constexpr size_t kText = 25;  // "rows=" and 20 digits
  if (slot.size() != size_t(kSlotBytes) || !slot.starts_with("rows=")) return -1;
  const std::string text(slot.substr(0, kText));
  const int64_t rows = std::strtoll(text.c_str() + 5, nullptr, 10);
  return slot_text(rows) == slot ? rows : -1;
}

// Writes texts as an array of strings of one length.
std::string padded(const std::vector<std::string>& texts, int64_t bytes) {
  std::string out;
  for (std::string text : texts) {
    text.resize(size_t(bytes));
    out += text;
  }
  return out;
}

int64_t longest(const std::vector<std::string>& texts) {
  size_t most = 1;
  for (const std::string& text : texts) most = std::max(most, text.size());
  return int64_t(most);
}

}  // namespace

int64_t RowColumn::elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

int64_t RowColumn::row_bytes() const { return elements() * element_bytes(*this); }

RowFile::RowFile(comm::Comm& world, RowPlan plan) : world_(world), plan_(std::move(plan)) {
  const std::string state = comm::on_first(world, [this] {
    try {
      begin();
    } catch (const io::Failure& e) {
      base::fail(e.code(), "{}: {}", plan_.key, e.what());
    }
    return Json{{"complete", complete_},
                {"done", done_},
                {"columns", layout_.columns},
                {"bytes", layout_.bytes}}
        .dump();
  });
  const Json known = Json::parse(state);
  complete_ = known.at("complete");
  done_ = given_ = known.at("done");
  layout_ = {known.at("columns"), known.at("bytes")};
  if (complete_) return;
  comm::together(world, [this] {
    if (world_.rank() != 0) file_ = io::File(part(), io::File::Mode::write);
    if (file_.size() != layout_.bytes)
      base::fail(base::Exit::config,
                 "{}: {} has {} bytes at rank {} and {} at rank 0; it must be on a file system "
                 "that all nodes share",
                 plan_.key, part(), file_.size(), world_.rank(), layout_.bytes);
  });
}

// Only rank 0 calls. A job with other settings changes nothing that another job wrote.
void RowFile::begin() {
  if ((complete_ = is_complete())) {
    done_ = plan_.rows;
    layout_.bytes = io::File(plan_.path, io::File::Mode::read).size();
    io::remove_file(progress_path());  // left by a job that ended right after the rename
    return;
  }
  io::make_directories(io::parent_of(plan_.path));
  file_ = io::File(part(), io::File::Mode::update);
  bool locked = true;
  try {
    locked = file_.try_lock();
  } catch (const io::Failure& e) {
    base::log::warning("{}: {}; make sure yourself that no other job writes this file", plan_.key,
                       e.what());
  }
  if (!locked)
    base::fail(base::Exit::config, "{}: another job writes {}; wait for it, or name another file",
               plan_.key, part());
  if (!resume()) create();
}

// True if the complete file exists. Throws if another plan wrote it.
bool RowFile::is_complete() const {
  if (!io::exists(plan_.path)) return false;
  std::string was;
  try {
    const io::H5File file = io::H5File::open(plan_.path);
    if (file.exists(kMadeFrom)) was = file.read_text(kMadeFrom);
  } catch (const io::Failure&) {
    // A file of another program.
  }
  if (was.empty())
    base::fail(base::Exit::config,
               "{}: {} exists and was not made by this mode; remove it, or name another file",
               plan_.key, plan_.path);
  if (const std::string differs = differences(was); !differs.empty())
    base::fail(base::Exit::config,
               "{}: {} exists, but was made from other weights, data or settings; remove it, or "
               "name another file:{}",
               plan_.key, plan_.path, differs);
  return true;
}

// Opens the unfinished file of an earlier job. Returns false if there is none.
bool RowFile::resume() {
  if (!io::exists(progress_path()) || file_.size() == 0) return false;
  const std::string text = io::read_file(progress_path());
  const size_t end = text.find('\n') + 1;
  const Json head = Json::parse(text.substr(0, end), nullptr, false);
  if (head.is_discarded() || !head.contains("made_from") || !head.contains("bytes") ||
      !head.contains("columns"))
    base::fail(base::Exit::config, "{}: {} is damaged; remove it to begin anew", plan_.key,
               progress_path());
  if (const std::string differs = differences(head["made_from"]); !differs.empty())
    base::fail(base::Exit::config,
               "{}: {} was begun from other weights, data or settings and cannot be continued; "
               "remove it to begin anew, or name another file:{}",
               plan_.key, part(), differs);
  layout_ = {head["columns"], head["bytes"]};
  if (file_.size() != layout_.bytes) return false;
  for (size_t at = end; at < text.size(); at += size_t(kSlotBytes))
    done_ = std::max(done_, rows_of(std::string_view(text).substr(at, size_t(kSlotBytes))));
  progress_.file = io::File(progress_path(), io::File::Mode::write);
  progress_.slots_at = int64_t(end);
  // The slot of the newest count must not be overwritten next.
  progress_.writes = rows_of(std::string_view(text).substr(end, size_t(kSlotBytes))) == done_;
  return true;
}

// Makes the structure and reserves the length, both before the first row.
void RowFile::create() {
  io::remove_file(progress_path());
  // HDF5 keeps its metadata in one block in front of the data, so the image has no data.
  const int64_t room = (int64_t{64} << 10) + 4096 * int64_t(plan_.columns.size());
  io::H5File h5 = io::H5File::create(
      part(), {.alignment = 4096, .aligned_from = 1 << 18, .metadata_block = room});
  for (const auto& [name, value] : plan_.attributes) h5.set_attribute("/", name, value);
  layout_ = {};
  auto place = [this](int64_t offset, int64_t bytes) {
    if (bytes > 0) layout_.bytes = std::max(layout_.bytes, offset + bytes);
    return offset;
  };
  for (const RowColumn& c : plan_.columns) {
    std::vector<int64_t> shape = {plan_.rows};
    shape.insert(shape.end(), c.shape.begin(), c.shape.end());
    layout_.columns.push_back(
        place(c.type == io::H5Type::text
                  ? h5.create_contiguous_texts(c.name, plan_.rows, element_bytes(c))
                  : h5.create_contiguous(c.name, c.type, shape),
              plan_.rows * c.row_bytes()));
    for (const auto& [name, value] : c.attributes) h5.set_attribute(c.name, name, value);
  }
  std::map<int64_t, std::string> texts;
  for (const auto& [name, list] : plan_.lists) {
    const int64_t bytes = longest(list), count = int64_t(list.size());
    texts[place(h5.create_contiguous_texts(name, count, bytes), count * bytes)] =
        padded(list, bytes);
  }
  const std::string from = made_from();
  texts[place(h5.create_contiguous_text(kMadeFrom, int64_t(from.size())), int64_t(from.size()))] =
      from;
  const std::string image = h5.close_to_image();
  layout_.bytes = std::max(layout_.bytes, int64_t(image.size()));
  if (const int64_t free = io::free_bytes(io::parent_of(part())); free < layout_.bytes)
    base::fail(base::Exit::checkpoint,
               "{}: {} takes {} MiB and {} MiB are free; make room, or name another file",
               plan_.key, plan_.path, base::mebibytes(layout_.bytes), base::mebibytes(free));
  file_.truncate(0);
  file_.truncate(layout_.bytes);
  file_.write_at(image.data(), int64_t(image.size()), 0);
  for (const auto& [offset, text] : texts)
    file_.write_at(text.data(), int64_t(text.size()), offset);
  file_.sync();
  io::sync_directory(io::parent_of(part()));
  const std::string head =
      Json{{"made_from", from}, {"columns", layout_.columns}, {"bytes", layout_.bytes}}.dump() +
      "\n";
  io::write_file_atomically(progress_path(), head + slot_text(0) + slot_text(0));
  progress_.file = io::File(progress_path(), io::File::Mode::write);
  progress_.slots_at = int64_t(head.size());
}

std::string RowFile::made_from() const {
  return Json(plan_.made_from).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Compares made_from with the text of an earlier job. Returns a line for each key that differs.
std::string RowFile::differences(const std::string& was) const {
  const Json before = Json::parse(was, nullptr, false);
  if (!before.is_object()) return "\n  its /made_from is damaged";
  std::string out;
  auto add = [&](const std::string& key, const std::string& then, const std::string& now) {
    if (then != now)
      out += fmt::format("\n  {}: then {}, now {}", key, base::quoted(then), base::quoted(now));
  };
  auto text_of = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  for (const auto& [key, now] : plan_.made_from)
    add(key, before.contains(key) ? text_of(before[key]) : "nothing", now);
  for (const auto& [key, then] : before.items())
    if (!plan_.made_from.contains(key)) add(key, text_of(then), "nothing");
  return out;
}

// Only rank 0 calls, once the rows are on disk.
void RowFile::record(int64_t rows) {
  const std::string slot = slot_text(rows);
  progress_.file.write_at(slot.data(), kSlotBytes,
                          progress_.slots_at + (progress_.writes++ % 2) * kSlotBytes);
  progress_.file.sync();
}

// Waits for the worker of every rank. Afterwards all rows that were given are on disk.
void RowFile::wait() {
  if (!busy_) return;
  busy_ = false;
  comm::agree_on(world_, worker_.take());
  done_ = given_;
}

void RowFile::write(RowBlock block, int64_t end) {
  wait();
  CHECK(block.count == 0 || block.columns.size() == plan_.columns.size());
  block_ = std::move(block);
  given_ = end;
  busy_ = true;
  worker_.start([this, recorded = done_] {
    if (world_.rank() == 0) record(recorded);
    if (block_.count == 0) return std::string();
    for (size_t c = 0; c < plan_.columns.size(); ++c) {
      const std::string& bytes = block_.columns[c];
      const int64_t row = plan_.columns[c].row_bytes();
      CHECK(int64_t(bytes.size()) == block_.count * row, "{}: {} bytes for {} rows",
            plan_.columns[c].name, bytes.size(), block_.count);
      file_.write_at(bytes.data(), int64_t(bytes.size()), layout_.columns[c] + block_.begin * row);
    }
    file_.sync();
    return std::string();
  });
}

void RowFile::settle() {
  wait();
  comm::on_first(world_, [this] {
    if (!complete_) record(done_);
    return std::string();
  });
}

void RowFile::publish() {
  settle();
  CHECK(done_ == plan_.rows, "{} of {} rows are written", done_, plan_.rows);
  comm::on_first(world_, [this] {
    io::rename_file(part(), plan_.path);
    io::sync_directory(io::parent_of(plan_.path));
    io::remove_file(progress_path());
    return std::string();
  });
  complete_ = true;
}

}  // namespace records
