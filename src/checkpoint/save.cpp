// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <limits>

#include "base/log.hpp"
#include "base/span.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "checkpoint/catalogue.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/header.hpp"
#include "comm/together.hpp"

namespace checkpoint {
namespace {

std::string bytes_of(const void* data, size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

// Describes the step and the tensors. All ranks must agree on it before they create a file
// together.
std::string description(const FileLayout& layout, const State& state) {
  std::string text = fmt::format("step {}", state.step);
  for (const Entry& e : layout.entries)
    text += fmt::format("\n{} {} {}", e.name, name_of(e.type), fmt::join(e.shape, "x"));
  return text;
}

// Converts the offsets of a layout to bytes; place() reads them back.
std::string places(const FileLayout& layout) {
  std::vector<int64_t> all{layout.tensor_sums, layout.block_sums, layout.file_sum,  layout.index,
                           layout.index_bytes, layout.file_bytes, layout.data_begin};
  for (const Entry& e : layout.entries) all.push_back(e.offset);
  return bytes_of(all.data(), all.size() * 8);
}
void place(FileLayout& layout, const std::string& bytes) {
  std::vector<int64_t> all(bytes.size() / 8);
  CHECK(all.size() == 7 + layout.entries.size());
  std::memcpy(all.data(), bytes.data(), bytes.size());
  layout.tensor_sums = all[0];
  layout.block_sums = all[1];
  layout.file_sum = all[2];
  layout.index = all[3];
  layout.index_bytes = all[4];
  layout.file_bytes = all[5];
  layout.data_begin = all[6];
  for (size_t i = 0; i < layout.entries.size(); ++i) layout.entries[i].offset = all[7 + i];
}

}  // namespace

Save::Save(comm::Comm& comm, std::string directory, const State& state)
    : comm_(comm),
      directory_(std::move(directory)),
      state_(state),
      driver_(make_driver(comm, state.io)) {
  layout_ = layout_of(state);
  for (const shard::TensorSlice& t : state.tensors) {
    if (!t.writes) continue;
    const Entry* entry = layout_.find(t.name);
    for (const auto& part : t.parts)
      if (int64_t size = device::size_of(t.type); part.end > part.begin)
        pieces_.push_back({int(entry - layout_.entries.data()),
                           part.begin * size,
                           part.end * size,
                           static_cast<const char*>(part.data),
                           {}});
  }
  if (const Entry* deck = layout_.find(kDeck); deck && comm.rank() == 0)
    pieces_.push_back(
        {int(deck - layout_.entries.data()), 0, deck->bytes, state.texts.at("deck").data(), {}});
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return a.entry != b.entry ? a.entry < b.entry : a.begin < b.begin;
  });
  check_coverage();
}

std::string Save::file() const { return file_name(state_.step); }

// A range that no rank or two ranks write would corrupt the file. Every rank checks the ranges of
// all ranks.
void Save::check_coverage() {
  std::vector<int64_t> mine;
  for (const Piece& p : pieces_) mine.insert(mine.end(), {p.entry, p.begin, p.end});
  uint64_t digest = base::xxh3(description(layout_, state_));
  std::vector<std::string> all =
      comm_.gather_text(bytes_of(&digest, 8) + bytes_of(mine.data(), mine.size() * 8));
  struct Range {
    int64_t entry, begin, end;
    size_t rank;
  };
  std::vector<Range> ranges;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    CHECK(std::memcmp(all[rank].data(), all[0].data(), 8) == 0,
          "checkpoint of step {}: ranks 0 and {} have different lists of tensors", state_.step,
          rank);
    for (size_t at = 8; at + 24 <= all[rank].size(); at += 24) {
      Range r{0, 0, 0, rank};
      std::memcpy(&r, all[rank].data() + at, 24);
      ranges.push_back(r);
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.entry != b.entry ? a.entry < b.entry : a.begin < b.begin;
  });
  size_t next = 0;
  for (size_t i = 0; i < layout_.entries.size(); ++i) {
    const Entry& e = layout_.entries[i];
    int64_t end = 0;
    for (; next < ranges.size() && ranges[next].entry == int64_t(i); end = ranges[next++].end) {
      const Range& r = ranges[next];
      CHECK(r.begin == end && r.end <= e.bytes,
            "{} of {} bytes: rank {} writes bytes [{}, {}), the ranges before end at {}", e.name,
            e.bytes, r.rank, r.begin, r.end, end);
    }
    CHECK(end == e.bytes, "{}: no rank writes its bytes [{}, {})", e.name, end, e.bytes);
  }
}

int64_t plan_places(const State& state, KnownPlaces& known) {
  FileLayout layout = layout_of(state);
  make_structure("planned checkpoint", state, layout);
  known = {structure_key(state, layout), places(layout)};
  return layout.file_bytes;
}

std::string Save::create(int64_t keep_free, KnownPlaces& known) {
  if (comm_.rank() != 0) return "";
  if (!io::is_directory(directory_)) {
    io::make_directories(directory_);
    base::log::warning(
        "{} was removed while this job writes to it: made again; checkpoints that were in it are "
        "gone",
        directory_);
  }
  int64_t needed = kUserBlock, free = io::free_bytes(directory_);
  for (const Entry& e : layout_.entries) needed += e.bytes;
  if (free < needed + keep_free)
    base::fail(base::Exit::checkpoint,
               "{}: a checkpoint takes {:.2f} MiB and only {:.2f} MiB are free{}; make room, or "
               "lower checkpoint.keep_last",
               directory_, double(needed) / 0x1p20, double(free) / 0x1p20,
               keep_free
                   ? fmt::format(", of which limits.min_free_gb keeps {} MiB", keep_free >> 20)
                   : "");
  io::remove_file(temporary());
  if (std::string key = structure_key(state_, layout_); key == known.key) {
    place(layout_, known.places);
  } else {
    make();
    known = {key, places(layout_)};
  }
  if (!together())
    make_file();
  else if (structure_.empty())
    make();
  return places(layout_);
}

// Makes the file with its length, and with the structure if it is known; on rank 0 only.
void Save::make_file() {
  io::File file = driver_->create(temporary());
  if (together()) write_structure(file);
  file.truncate(layout_.file_bytes);
  file.close();
}

// Makes the structure; on rank 0 only.
void Save::make() {
  FileLayout made = layout_;
  structure_ = make_structure(temporary(), state_, made);
  if (layout_.index < 0)
    layout_ = std::move(made);
  else  // write() is reading layout_
    CHECK(places(made) == places(layout_),
          "{}: HDF5 placed the datasets at other offsets than last time", temporary());
}

void Save::set_places(const std::string& places) { place(layout_, places); }

io::File Save::open() const {
  if (!io::is_directory(directory_))
    base::fail(base::Exit::checkpoint,
               "{}: this rank sees no such directory; it was removed just now, or is not on a file "
               "system that all nodes share",
               directory_);
  return {temporary(), io::File::Mode::write};
}

std::vector<Piece*> Save::by_offset() {
  std::vector<Piece*> order;
  for (Piece& p : pieces_) order.push_back(&p);
  auto place = [&](const Piece* p) { return layout_.entries[size_t(p->entry)].offset + p->begin; };
  std::sort(order.begin(), order.end(),
            [&](const Piece* a, const Piece* b) { return place(a) < place(b); });
  return order;
}

void Save::write_together() {
  base::Span span("write by MPI-IO", base::SpanKind::save);
  comm::on_first(comm_, [&] {
    make_file();
    return std::string();
  });
  // The file that is synced later is open before the writes, so that none of their errors is lost.
  comm::together(comm_, [&] { file_ = open(); });
  WrittenUpTo all;
  comm::together(comm_, [&] { driver_->write(file_, layout_, by_offset(), all); });
}

// Blocks [first, end) of a piece's tensor, which one thread reads back.
struct Save::Proof {
  Piece* piece;
  int64_t first, end;
};

void Save::write() {
  const std::vector<Piece*> order = by_offset();
  const std::vector<Proof> proofs = proofs_of(order);
  std::future<void> made;
  if (!together()) {
    file_ = open();
    if (comm_.rank() == 0 && structure_.empty())
      made = base::async("make file", [this] { make(); });
  }
  io::File file = std::move(file_);
  // With MPI-IO, other ranks may write this rank's bytes. These appear once the file is opened
  // anew.
  const io::File anew = together() ? io::File(temporary(), io::File::Mode::read) : io::File();
  const io::File& shown = together() ? anew : file;
  WrittenUpTo written;
  // Bytes are read back while the next ones are written, and before memory that is short drops them
  // from the page cache. Reading after the sync would prove no more: the page cache (or the client
  // of a network file system) answers both.
  std::atomic<size_t> next{0};
  auto prove_some = [&] {
    for (size_t i = next++; i < proofs.size(); i = next++)
      if (!prove(shown, proofs[i], written)) return;
  };
  std::vector<std::future<void>> provers;
  try {
    for (int64_t i = 0; i < std::min(state_.io.threads, int64_t(proofs.size())); ++i)
      provers.push_back(base::async("read back", prove_some));
    if (!together()) driver_->write(file, layout_, order, written);
    written.advance(std::numeric_limits<int64_t>::max());
    base::Span span("sync a checkpoint", base::SpanKind::save);
    file.sync();
  } catch (...) {
    written.fail();
    throw;
  }
  for (std::future<void>& prover : provers) prover.get();
  if (made.valid()) made.get();
  file.close();
}

// Sorted by their offsets, so that threads read what was written just before.
std::vector<Save::Proof> Save::proofs_of(const std::vector<Piece*>& order) const {
  constexpr int64_t kBlocks = 32;
  std::vector<Proof> proofs;
  for (Piece* p : order) {
    const int64_t end = block_count(p->end), bytes = layout_.entries[size_t(p->entry)].bytes,
                  whole_end = p->end == bytes ? end : p->end / kBlock;
    p->whole.resize(size_t(std::max<int64_t>(whole_end - block_count(p->begin), 0)));
    for (int64_t first = p->begin / kBlock; first < end; first += kBlocks)
      proofs.push_back({p, first, std::min(first + kBlocks, end)});
  }
  return proofs;
}

// Reads back this rank's bytes of some blocks, once they are written, and compares them with
// memory. Stores the hashes of blocks that this rank wrote as a whole. Returns false if they are
// not written.
bool Save::prove(const io::File& file, const Proof& proof, const WrittenUpTo& written) const {
  std::vector<char> buffer(size_t{kBlock});
  Piece& p = *proof.piece;
  const Entry& e = layout_.entries[size_t(p.entry)];
  for (int64_t block = proof.first; block < proof.end; ++block) {
    int64_t block_begin = block * kBlock, block_end = block_begin + block_bytes(block, e.bytes);
    int64_t begin = std::max(block_begin, p.begin), bytes = std::min(block_end, p.end) - begin;
    const char* meant = p.data + (begin - p.begin);
    if (!written.wait_for(e.offset + begin + bytes)) return false;
    file.read_at(buffer.data(), bytes, e.offset + begin);
    bool same;
    if (bytes == block_end - block_begin) {
      uint64_t& hash = p.whole[size_t(block - block_count(p.begin))];
      hash = base::xxh3(meant, size_t(bytes));
      same = base::xxh3(buffer.data(), size_t(bytes)) == hash;
    } else {
      same = std::memcmp(buffer.data(), meant, size_t(bytes)) == 0;
    }
    if (!same)
      base::fail(base::Exit::checkpoint,
                 "{}: {} reads back differently from what was written (block {} at byte {})",
                 temporary(), e.name, block, e.offset + begin);
  }
  return true;
}

std::vector<BlockHash> Save::verify() {
  // On network file systems, opening the file anew makes the other ranks' synced bytes visible.
  io::File file(temporary(), io::File::Mode::read);
  std::vector<char> buffer(size_t{kBlock});
  std::vector<BlockHash> hashes;
  for (const Piece& p : pieces_) {
    const Entry& e = layout_.entries[size_t(p.entry)];
    size_t known = 0;
    for (int64_t block = block_count(p.begin); block * kBlock < p.end; ++block) {
      if (known < p.whole.size()) {
        hashes.push_back({e.first_block + block, p.whole[known++]});
        continue;
      }
      int64_t bytes = block_bytes(block, e.bytes);
      file.read_at(buffer.data(), bytes, e.offset + block * kBlock);
      hashes.push_back({e.first_block + block, base::xxh3(buffer.data(), size_t(bytes))});
    }
  }
  return hashes;
}

// Writes the structure around the data.
void Save::write_structure(io::File& file) const {
  auto write = [&](int64_t begin, int64_t end) {
    end = std::min(end, int64_t(structure_.size()));
    if (begin < end) file.write_at(structure_.data() + begin, end - begin, begin);
  };
  write(kUserBlock, layout_.data_begin);
  for (auto [begin, end] : layout_.gaps()) write(begin, end);
}

void Save::commit(const std::vector<BlockHash>& hashes, int64_t since,
                  const std::set<int64_t>& own) {
  std::vector<uint64_t> blocks(size_t(layout_.blocks)), tensors;
  std::vector<bool> seen(blocks.size());
  for (const BlockHash& h : hashes) {
    CHECK(!seen.at(size_t(h.block)), "block {} was hashed twice", h.block);
    blocks[size_t(h.block)] = h.hash;
    seen[size_t(h.block)] = true;
  }
  CHECK(std::find(seen.begin(), seen.end(), false) == seen.end(),
        "a block of the checkpoint was hashed by no rank");
  for (const Entry& e : layout_.entries)
    tensors.push_back(hash_of({blocks.data() + e.first_block, size_t(e.blocks())}));

  io::File file(temporary(), io::File::Mode::write);
  if (!tensors.empty())
    file.write_at(tensors.data(), int64_t(tensors.size() * 8), layout_.tensor_sums);
  if (!blocks.empty()) file.write_at(blocks.data(), int64_t(blocks.size() * 8), layout_.block_sums);
  const uint64_t all = hash_of(tensors);
  file.write_at(&all, 8, layout_.file_sum);
  const std::string index = encode_index(state_, layout_);
  CHECK(int64_t(index.size()) == layout_.index_bytes, "the index has {} bytes, {} were planned",
        index.size(), layout_.index_bytes);
  file.write_at(index.data(), layout_.index_bytes, layout_.index);
  write_structure(file);
  Header header{.step = state_.step,
                .file_bytes = layout_.file_bytes,
                .structure = {},
                .structure_hash = 0,
                .index = {layout_.index, layout_.index + layout_.index_bytes},
                .index_hash = base::xxh3(index)};
  header.structure = find_structure(file, layout_);
  header.structure_hash = hash_structure(file, header.structure);
  file.write_at(encode(header).data(), kUserBlock, 0);
  file.sync();
  file.close();
  if (std::vector<std::string> later = abandon_after(directory_, since, own); !later.empty())
    base::log::warning(
        "checkpoint: moved to {}/abandoned, because the run continued from an earlier step: {}",
        directory_, base::join(later, " "));
  io::rename_file(temporary(), path());
  io::sync_directory(directory_);
}

void Save::discard() noexcept {
  try {
    io::remove_file(temporary());
  } catch (const std::exception&) {
    // The next start removes the file.
  }
}

}  // namespace checkpoint
