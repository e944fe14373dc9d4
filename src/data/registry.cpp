// Everything that a deck can name in [data.*], [tokenizer.*] and preprocessing strings. To add one: write a file that
// ends in a row function, declare that function here and put it into its table.
#include <algorithm>

#include "base/error.hpp"
#include "data/hint.hpp"
#include "data/op.hpp"
#include "data/source.hpp"
#include "data/tokenizer.hpp"

namespace data {

SourceRow webdataset_row();
SourceRow hdf5_row();
SourceRow folder_row();
SourceRow synthetic_row();

TokenizerRow bytes_row();
TokenizerRow sentencepiece_row();

OpRow central_crop_row();
OpRow choice_row();
OpRow clip_value_range_row();
OpRow coco_captions_row();
OpRow copy_row();
OpRow decode_row();
OpRow drop_row();
OpRow flip_lr_row();
OpRow inception_crop_row();
OpRow keep_row();
OpRow lower_row();
OpRow onehot_row();
OpRow pad_to_shape_row();
OpRow random_crop_row();
OpRow randu_row();
OpRow reshape_row();
OpRow resize_row();
OpRow resize_long_row();
OpRow resize_small_row();
OpRow tokenize_row();
OpRow value_range_row();
OpRow vgg_value_range_row();

std::span<const SourceRow> source_rows() {
  static const SourceRow rows[] = {webdataset_row(), hdf5_row(), folder_row(), synthetic_row()};
  return rows;
}

std::span<const TokenizerRow> tokenizer_rows() {
  static const TokenizerRow rows[] = {sentencepiece_row(), bytes_row()};
  return rows;
}

std::span<const OpRow> op_rows() {
  static const OpRow rows[] = {
      central_crop_row(), choice_row(),         clip_value_range_row(), coco_captions_row(),  copy_row(),
      decode_row(),       drop_row(),           flip_lr_row(),          inception_crop_row(), keep_row(),
      lower_row(),        onehot_row(),         pad_to_shape_row(),     random_crop_row(),    randu_row(),
      reshape_row(),      resize_row(),         resize_long_row(),      resize_small_row(),   tokenize_row(),
      value_range_row(),  vgg_value_range_row()};
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
