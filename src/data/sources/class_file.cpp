// SPDX-License-Identifier: Apache-2.0
#include "data/sources/class_file.hpp"

#include <numeric>

#include "base/hash.hpp"
#include "data/sources/index_bytes.hpp"

namespace data {
namespace {

constexpr std::string_view kClassMagic = "trainer classes 1\n";
constexpr size_t kWord = 8;

}  // namespace

std::string encode_class_piece(const ClassPiece& piece, const ClassRange& range) {
  IndexWriter w;
  w.out = kClassMagic;
  w.number(int64_t(range.state));
  w.number(range.begin);
  w.number(range.end);
  w.small(piece.names.size());
  for (size_t c = 0; c < piece.names.size(); ++c) {
    w.text(piece.names[c]);
    w.small(uint64_t(piece.sizes[c]));
  }
  w.out.resize((w.out.size() + kWord - 1) / kWord * kWord);
  w.out += piece.numbers.bytes();
  w.number(int64_t(base::xxh3(w.out)));
  return std::move(w.out);
}

bool decode_class_piece(const std::shared_ptr<const IndexBytes>& bytes, const ClassRange& range,
                        ClassPiece& out) {
  if (!bytes || !bytes->view().starts_with(kClassMagic) || bytes->view().size() % kWord)
    return false;
  const std::string_view all = bytes->view().substr(0, bytes->view().size() - kWord);
  IndexReader r(all.substr(kClassMagic.size()));
  if (uint64_t(r.number()) != range.state || r.number() != range.begin || r.number() != range.end)
    return false;
  out.print = base::xxh3(all);
  if (IndexReader(bytes->view().substr(all.size())).number() != int64_t(out.print)) return false;
  const size_t count = r.count(2);
  for (size_t c = 0; c < count; ++c) {
    out.names.emplace_back(r.text());
    out.sizes.push_back(int64_t(r.small()));
  }
  if (!r.good() || count == 0) return false;
  const std::string_view numbers =
      all.substr((all.size() - r.rest().size() + kWord - 1) / kWord * kWord);
  const int64_t size = range.end - range.begin;
  if (std::reduce(out.sizes.begin(), out.sizes.end()) != size ||
      int64_t(numbers.size()) != base::Occurrences::byte_count(size, uint32_t(count)))
    return false;
  out.numbers = base::Occurrences(size, uint32_t(count), numbers, bytes);
  // The check has read the whole file. Later draws read only the pages that they need.
  bytes->release();
  return true;
}

}  // namespace data
