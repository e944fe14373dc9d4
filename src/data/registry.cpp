// Everything that a deck can name in [data.*], [tokenizer.*] and preprocessing strings.
#include <algorithm>

#include "base/error.hpp"
#include "data/hint.hpp"
#include "data/op.hpp"
#include "data/source.hpp"
#include "data/tokenizer.hpp"

namespace data {

// One row for each: src/data/source_NAME.cpp, tokenizer_NAME.cpp, op_NAME.cpp end in NAME_row().
#define SOURCES(ROW) ROW(webdataset) ROW(hdf5) ROW(folder) ROW(synthetic)
#define TOKENIZERS(ROW) ROW(sentencepiece) ROW(bytes)
#define OPS(ROW)                                                                                                      \
  ROW(central_crop)                                                                                                   \
  ROW(choice) ROW(clip_value_range) ROW(coco_captions) ROW(copy) ROW(decode) ROW(drop) ROW(flip_lr)                   \
      ROW(inception_crop) ROW(keep) ROW(lower) ROW(onehot) ROW(pad_to_shape) ROW(random_crop) ROW(randu) ROW(reshape) \
          ROW(resize) ROW(resize_long) ROW(resize_small) ROW(tokenize) ROW(value_range) ROW(vgg_value_range)

#define DECLARE_SOURCE(name) SourceRow name##_row();
#define DECLARE_TOKENIZER(name) TokenizerRow name##_row();
#define DECLARE_OP(name) OpRow name##_row();
#define CALL(name) name##_row(),
SOURCES(DECLARE_SOURCE)
TOKENIZERS(DECLARE_TOKENIZER)
OPS(DECLARE_OP)

std::span<const SourceRow> source_rows() {
  static const SourceRow rows[] = {SOURCES(CALL)};
  return rows;
}

std::span<const TokenizerRow> tokenizer_rows() {
  static const TokenizerRow rows[] = {TOKENIZERS(CALL)};
  return rows;
}

std::span<const OpRow> op_rows() {
  static const OpRow rows[] = {OPS(CALL)};
  return rows;
}

namespace {

template <class Row>
std::vector<std::string> names_of(std::span<const Row> rows) {
  std::vector<std::string> out;
  for (const Row& r : rows) out.push_back(r.name);
  return out;
}

template <class Row>
const Row& row_named(std::span<const Row> rows, const std::string& name, const char* what) {
  auto it = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
  if (it != rows.end()) return *it;
  std::vector<std::string> names = names_of(rows);
  base::fail(base::Exit::config, "unknown kind of {} '{}'{}; known: {}", what, name, nearest_hint(name, names),
             list_of(names));
}

}  // namespace

std::vector<std::string> source_names() { return names_of(source_rows()); }
std::vector<std::string> tokenizer_kind_names() { return names_of(tokenizer_rows()); }
std::vector<std::string> op_names() { return names_of(op_rows()); }

std::shared_ptr<SourceOptions> make_source_options(const std::string& kind) {
  return row_named(source_rows(), kind, "data source").make();
}
std::shared_ptr<TokenizerKindOptions> make_tokenizer_options(const std::string& kind) {
  return row_named(tokenizer_rows(), kind, "tokenizer").make();
}

}  // namespace data
