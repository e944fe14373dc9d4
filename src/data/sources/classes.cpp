// SPDX-License-Identifier: Apache-2.0
#include "data/sources/classes.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <numeric>
#include <thread>
#include <unordered_map>

#include "base/cancel.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"
#include "base/thread_scope.hpp"
#include "data/hint.hpp"
#include "data/sources/class_file.hpp"

namespace data {
namespace {

void check_field(const Spec& spec, const std::string& field) {
  using FieldKind = FieldSpec::Kind;
  const auto found = spec.find(field);
  if (found == spec.end()) {
    std::vector<std::string> names;
    for (const auto& [name, known] : spec) names.push_back(name);
    base::fail(base::Exit::config, "class_field: the source has no field '{}'{}; it has {}", field,
               nearest_hint(field, names), list_of(names));
  }
  const FieldSpec& known = found->second;
  if (known.kind == FieldKind::text ||
      (known.kind == FieldKind::array && known.shape.empty() && known.type == device::DType::i32))
    return;
  base::fail(
      base::Exit::config,
      "class_field: field '{}' is {}, and a class is a whole number or a text{}", field,
      text_of(known),
      known.kind == FieldKind::texts ? "; sample = \"caption\" gives each row its own sample" : "");
}

std::string class_name(const Value& value) {
  if (const Array* a = std::get_if<Array>(&value)) return std::to_string(*a->i32());
  return std::string(base::trim(std::get<std::string>(value)));
}

// Numbers the classes by their first appearance, and then by their names.
ClassPiece read_piece(const Source& source, const std::string& field, int64_t begin, int64_t end,
                      const std::stop_token& token) {
  std::unordered_map<std::string, uint32_t> numbers;
  base::PackedNumbers of_sample(end - begin, 0);
  int64_t at = begin;
  auto add = [&](const Value& value) {
    const auto number = numbers.try_emplace(class_name(value), uint32_t(numbers.size())).first;
    of_sample.set(at++ - begin, number->second);
    return !token.stop_requested();
  };
  try {
    source.fields(begin, end, field, add);
  } catch (const base::Error& e) {
    base::fail(e.code(), "{}: {}", source.key(at), e.what());
  }
  base::end_if_asked(token);
  ClassPiece out;
  for (const auto& [name, number] : numbers) out.names.push_back(name);
  std::sort(out.names.begin(), out.names.end());
  std::vector<uint32_t> sorted(out.names.size());
  for (size_t c = 0; c < sorted.size(); ++c) sorted[numbers.at(out.names[c])] = uint32_t(c);
  out.sizes.resize(out.names.size());
  for (int64_t i = 0; i < of_sample.size(); ++i) {
    const uint32_t number = sorted[of_sample[i]];
    of_sample.set(i, number);
    ++out.sizes[number];
  }
  out.numbers = base::Occurrences(std::move(of_sample), uint32_t(out.names.size()));
  return out;
}

// The files of a source that keep the classes of its samples, one for each piece.
struct ClassFiles {
  const OpenContext& context;
  Source::Origin origin;
  std::string folder;

  std::vector<std::string> places(int64_t piece) const {
    const std::string name = fmt::format(".{}.{:06}.classes", path_hash(origin.name), piece);
    return index_places_in(folder, name, context);
  }
  bool read(int64_t piece, const ClassRange& range, ClassPiece& out) const {
    for (const std::string& place : places(piece)) {
      ClassPiece found;
      if (!decode_class_piece(IndexBytes::map(place), range, found)) continue;
      out = std::move(found);
      return true;
    }
    return false;
  }
  // Replaces the piece by the mapped one, if a place takes it.
  void write(int64_t piece, const ClassRange& range, ClassPiece& made) const {
    if (!context.write_index) return;
    write_index_file(places(piece), encode_class_piece(made, range));
    read(piece, range, made);
  }
};

}  // namespace

Classes::Classes(std::vector<ClassPiece> pieces) : pieces_(std::move(pieces)) {
  std::map<std::string_view, uint32_t> all;
  size_t places = 0;
  for (const ClassPiece& piece : pieces_) {
    for (const std::string& name : piece.names) all[name] = 0;
    places += piece.names.size();
    begins_.push_back(begins_.back() + piece.numbers.size());
  }
  for (auto& [name, number] : all) {
    number = uint32_t(names_.size());
    names_.emplace_back(name);
  }
  sizes_.resize(names_.size());
  place_begins_.resize(names_.size() + 1);
  for (const ClassPiece& piece : pieces_) {
    std::vector<uint32_t>& own = numbers_.emplace_back();
    for (const std::string& name : piece.names) {
      own.push_back(all.at(name));
      ++place_begins_[own.back() + 1];
    }
  }
  std::partial_sum(place_begins_.begin(), place_begins_.end(), place_begins_.begin());
  places_.resize(places);
  std::vector<size_t> next(place_begins_.begin(), place_begins_.end() - 1);
  for (uint32_t p = 0; p < uint32_t(pieces_.size()); ++p)
    for (uint32_t n = 0; n < uint32_t(numbers_[p].size()); ++n) {
      const uint32_t c = numbers_[p][n];
      places_[next[c]++] = {p, n, sizes_[c]};
      sizes_[c] += pieces_[p].sizes[n];
    }
}

uint32_t Classes::of_sample(int64_t sample) const {
  const auto next = std::upper_bound(begins_.begin(), begins_.end() - 1, sample);
  const size_t piece = size_t(next - begins_.begin()) - 1;
  return numbers_[piece][pieces_[piece].numbers[sample - begins_[piece]]];
}

int64_t Classes::sample(uint32_t number, int64_t k) const {
  const auto begin = places_.begin() + int64_t(place_begins_[number]),
             end = places_.begin() + int64_t(place_begins_[number + 1]);
  const Place& place = *(std::ranges::upper_bound(begin, end, k, {}, &Place::before) - 1);
  return begins_[place.piece] + pieces_[place.piece].numbers.place(place.number, k - place.before);
}

int64_t Classes::bytes() const {
  int64_t out = 0;
  for (const ClassPiece& piece : pieces_)
    out += base::Occurrences::byte_count(piece.numbers.size(), uint32_t(piece.names.size()));
  return out;
}

uint64_t Classes::print() const {
  Fingerprint print;
  for (const ClassPiece& piece : pieces_) {
    if (piece.print == 0) return 0;
    print.add(int64_t(piece.print));
  }
  return print.value();
}

Classes read_classes(const Source& source, const Spec& spec, const std::string& field,
                     const OpenContext& context, int64_t piece) {
  check_field(spec, field);
  const int64_t n = source.size(), threads = std::max(1, context.threads);
  std::optional<ClassFiles> files;
  if (n > piece)
    if (std::optional<Source::Origin> origin = source.origin(field))
      files.emplace(ClassFiles{context, std::move(*origin), source.folder()});
  // Each thread gets a piece, if no file says what a piece is.
  const int64_t length = files ? piece : std::clamp<int64_t>(base::ceil_div(n, threads), 1, piece),
                count = base::ceil_div(n, length);
  std::vector<ClassPiece> pieces(static_cast<size_t>(count));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
  auto open = [&](int64_t p) {
    const int64_t begin = p * length, end = std::min(n, begin + length);
    ClassPiece& out = pieces[size_t(p)];
    const ClassRange range{files ? files->origin.state : 0, begin, end};
    if (files && files->read(p, range, out)) return;
    out = read_piece(source, field, begin, end, context.token);
    if (files) files->write(p, range, out);
  };
  // Ranks begin at different pieces, and then find those of others.
  const int64_t first = files ? count * base::where().rank / std::max(base::where().ranks, 1) : 0;
  std::atomic<int64_t> next{0};
  auto work = [&] {
    for (int64_t i; (i = next++) < count;) {
      const int64_t p = (first + i) % count;
      try {
        open(p);
      } catch (...) {
        errors[size_t(p)] = std::current_exception();
        return;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int64_t t = 1; t < std::min(threads, count); ++t)
      helpers.push_back(base::thread("classes", work));
    work();
  }
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
  return Classes(std::move(pieces));
}

}  // namespace data
