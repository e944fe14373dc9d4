// SPDX-License-Identifier: Apache-2.0
// The registries of everything that a deck can name in [data.*], [tokenizer.*] and preprocessing
// strings.
#include "data/ops/op.hpp"
#include "data/sources/source.hpp"
#include "data/tokenizers/tokenizer.hpp"

namespace data {

// One row for each: files in sources/, tokenizers/ and ops/ end in NAME_row().
#define SOURCES(ROW) ROW(webdataset) ROW(hdf5) ROW(folder) ROW(class_folder) ROW(synthetic)
#define TOKENIZERS(ROW) ROW(sentencepiece) ROW(bytes)
// clang-format off
#define OPS(ROW) \
  ROW(center_crop) ROW(central_crop) ROW(class_number) ROW(choice) ROW(clip_value_range) \
  ROW(coco_captions) ROW(color_distortion) ROW(color_jitter) ROW(copies) ROW(copy) ROW(decode) \
  ROW(drop) ROW(flip_lr) ROW(gaussian_blur) ROW(grayscale) ROW(inception_crop) ROW(index) \
  ROW(keep) ROW(lower) ROW(multi_crop) ROW(normalize) ROW(onehot) ROW(pad_to_shape) \
  ROW(patches) ROW(photometric) ROW(random_crop) ROW(random_resized_crop) ROW(randu) ROW(reshape) \
  ROW(resize) ROW(resize_long) ROW(resize_shorter) ROW(resize_small) ROW(rotate) \
  ROW(shuffle_patches) ROW(solarize) ROW(tokenize) ROW(value_range) ROW(vgg_value_range)
// clang-format on

REGISTRY(source_rows, SourceRow, "data source", SOURCES)
REGISTRY(tokenizer_rows, TokenizerRow, "tokenizer", TOKENIZERS)
REGISTRY(op_rows, OpRow, "op", OPS)

}  // namespace data
