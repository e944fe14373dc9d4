// SPDX-License-Identifier: Apache-2.0
#include "models/captions/pair_score_pass.hpp"

#include <algorithm>

#include "base/narrow.hpp"
#include "kernels/gemm.hpp"
#include "models/decoders/pair_decoder.hpp"

namespace models {
namespace {

using device::DType;

// The most rows of a chunk. Large chunks waste little on padding: chunks of 256 rows take 3 % more
// time on CPUs for a hundred classes in f32.
constexpr int64_t kChunkRows = 1024;
// Returns how many rows of logits one product computes if results may not depend on it. Each bf16
// product packs the vocabulary's weights first: 576 rows take 6 % more time for all scores. Every
// thread gets the same number of blocks of rows.
int64_t piece_rows(int64_t threads) {
  return kernels::kAlikeRows * threads * std::max<int64_t>(1, 20 / threads);
}
// If the batch is small, a tile takes several chunks, up to this number of rows in all. Large tiles
// save time because sharded weights are gathered again for each tile.
constexpr int64_t kTileRows = 4096;
constexpr int64_t kMostChunks = 16;  // of a tile

class CaptionPairScorePass : public PairScorePass {
 public:
  explicit CaptionPairScorePass(const PairScoreParts& parts)
      : parts_(parts), decoder_(parts.decoder), encoder_(parts.encoder.make_pass()) {}

  std::string name() const override { return "score pairs"; }
  std::vector<InputSpec> inputs() const override { return {parts_.image}; }
  void run(nn::Context& ctx, const Inputs& inputs, const TextList& texts, double* scores) override;
  void plan(nn::Context& ctx, const Inputs& inputs) override;
  std::vector<int64_t> tokens(const TextList& texts) const override;

 private:
  void check(const TextList& texts) const;
  // Returns the rows of the largest chunk.
  int64_t most_rows() const;
  static int64_t chunks_of_tile(int64_t batch, int64_t rows) {
    return std::clamp<int64_t>(kTileRows / (batch * rows), 1, kMostChunks);
  }
  // Returns the chunk of the i-th rows of a tile. They are ordered by image and chunk.
  const TextChunks::Chunk& chunk_of(PairDecoder::Tile tile, int64_t i) const {
    return chunks_[tile.first + i % tile.count];
  }
  // Returns the rows whose logits are computed for a chunk and one image.
  int64_t head_rows(const TextChunks::Chunk& chunk) const {
    return padded_rows_ ? padded_rows_ : chunk.targets.back().row + 1;
  }
  void encode(nn::Context& ctx, const Inputs& inputs);
  void run_tile(nn::Context& ctx, PairDecoder::Tile tile);
  void place_targets(nn::Context& ctx, PairDecoder::Tile tile);
  void add_scores(nn::Context& ctx, PairDecoder::Tile tile, int64_t texts, double* scores);

  PairScoreParts parts_;
  PairDecoder decoder_;
  std::unique_ptr<Trunk::Pass> encoder_;
  std::vector<PairDecoder::Memory> memory_;
  TextChunks chunks_;
  CaptionHead::Pass head_;
  int64_t padded_rows_ = 0;  // of a chunk of one image, in whole pieces; 0 if rows are alike
};

std::vector<int64_t> CaptionPairScorePass::tokens(const TextList& texts) const {
  std::vector<int64_t> out(size_t(texts.count()), 0);
  for (size_t i = 0; i < texts.ids.size(); ++i)
    out[i / size_t(texts.length)] += texts.ids[i] != int32_t(parts_.pad_id);
  return out;
}

void CaptionPairScorePass::check(const TextList& texts) const {
  if (texts.length > parts_.decoder.config().length)
    base::fail(base::Exit::data, "texts of {} tokens; the model has {} positions (model.seq_len)",
               texts.length, parts_.decoder.config().length);
  for (size_t i = 0; i < texts.ids.size(); ++i)
    if (int32_t id = texts.ids[i]; id < 0 || id >= parts_.head_config.vocabulary)
      base::fail(base::Exit::data,
                 "token {} of text {} lies outside the vocabulary of {} (model.vocab_size)", id,
                 i / size_t(texts.length), parts_.head_config.vocabulary);
}

int64_t CaptionPairScorePass::most_rows() const {
  return base::round_up(std::max(kChunkRows, parts_.decoder.config().length), TextChunks::kSizes);
}

void CaptionPairScorePass::encode(nn::Context& ctx, const Inputs& inputs) {
  CHECK(!ctx.keep);
  nn::Context by_image = ctx;
  by_image.slices = ctx.queue.rows_alike() ? 1 : ctx.batch;
  ImageGroup images = parts_.images;
  images.images = inputs.at("image").device;
  parts_.encoder.place(by_image, {&images, 1}, *encoder_);
  const Tokens& encoded = parts_.encoder.forward(by_image, {&images, 1},
                                                 parts_.decoder.stack().first_block(), *encoder_);
  decoder_.project(ctx, encoded.of_one_size(), memory_);
}

// The head computes its logits piece by piece. A piece has rows of one image, unless rows are alike
// anyway. The head computes the loss of the first target of each row. The losses of the row's other
// targets follow from differences of picked logits.
void CaptionPairScorePass::place_targets(nn::Context& ctx, PairDecoder::Tile tile) {
  const HeadConfig& config = parts_.head_config;
  const bool alike = ctx.queue.rows_alike();
  const int64_t rows = chunks_.rows(),
                budget = std::clamp<int64_t>((config.logits_mb << 20) / (4 * config.vocabulary), 1,
                                             alike ? piece_rows(ctx.queue.threads()) : rows),
                even = base::ceil_div(rows, base::ceil_div(rows, budget));
  padded_rows_ = alike ? 0 : base::round_up(rows, even);
  int64_t count = 0;
  for (int64_t i = 0; i < ctx.batch * tile.count; ++i) count += head_rows(chunk_of(tile, i));
  // CPUs pad products to a multiple of these rows anyway.
  if (alike) count = base::round_up(count, kernels::kAlikeUnit);
  // The last piece may be smaller. By then, the library has kernels for the shapes of its blocks.
  const int64_t piece = alike ? std::min(budget, count) : even;
  head_.index.assign(size_t(count), -1);
  head_.labels.assign(size_t(count), 0);
  head_.first = {0, base::ceil_div(count, piece)};
  head_.first_pick.assign(1, 0);
  std::vector<int32_t> picks;
  auto end_pieces = [&](int64_t number) {
    while (int64_t(head_.first_pick.size()) <= number)
      head_.first_pick.push_back(int64_t(picks.size()));
  };
  int64_t begin = 0;
  for (int64_t i = 0; i < ctx.batch * tile.count; ++i) {
    const TextChunks::Chunk& chunk = chunk_of(tile, i);
    for (const TextChunks::Target& target : chunk.targets) {
      const int64_t at = begin + target.row;
      const TextChunks::Target& first = chunk.targets[size_t(target.first)];
      if (&target == &first) {
        head_.index[size_t(at)] = int32_t(i * rows + target.row);
        head_.labels[size_t(at)] = target.label;
        continue;
      }
      end_pieces(at / piece);
      for (int32_t label : {target.label, first.label})
        picks.push_back(base::narrow<int32_t>(at % piece * config.vocabulary + label));
    }
    begin += head_rows(chunk);
  }
  end_pieces(head_.first.back());
  head_.targets = {.rows = piece,
                   .index = ctx.table(false, head_.index),
                   .labels = ctx.table(false, head_.labels),
                   .scale = {},
                   .loss = ctx.arena.temporary(count),
                   .examples = {},
                   .pick_index = {},
                   .picked = {}};
  if (picks.empty()) return;
  head_.targets.pick_index = ctx.table(false, picks);
  head_.targets.picked = ctx.arena.temporary(int64_t(picks.size()));
}

void CaptionPairScorePass::run_tile(nn::Context& ctx, PairDecoder::Tile tile) {
  const int64_t rows = ctx.batch * tile.count * chunks_.rows();
  const View x = ctx.arena.temporary(rows * parts_.decoder.config().width);
  decoder_.run(ctx, chunks_, tile, memory_, parts_.head.block(), x);
  place_targets(ctx, tile);
  TextRows all;
  all.length = 1;
  all.cuts = {0, rows};
  parts_.head.evaluate(ctx, x, all, head_);
}

void CaptionPairScorePass::add_scores(nn::Context& ctx, PairDecoder::Tile tile, int64_t texts,
                                      double* scores) {
  auto on_host = [&](View view) {
    std::vector<float> out;
    if (!view.none())
      device::read_on_host(view, ctx.queue,
                           [&](View v) { out.assign(v.f32(), v.f32() + v.count); });
    return out;
  };
  const std::vector<float> loss = on_host(head_.targets.loss),
                           picked = on_host(head_.targets.picked);
  const float* pick = picked.data();
  std::vector<double> nll;
  int64_t begin = 0;
  for (int64_t i = 0; i < ctx.batch * tile.count; ++i) {
    const TextChunks::Chunk& chunk = chunk_of(tile, i);
    nll.clear();
    for (const TextChunks::Target& target : chunk.targets)
      if (target.first == int32_t(nll.size())) {
        nll.push_back(double(loss[size_t(begin + target.row)]));
      } else {
        nll.push_back(nll[size_t(target.first)] + double(pick[1]) - double(pick[0]));
        pick += 2;
      }
    for (const TextChunks::Use& use : chunk.uses)
      scores[i / tile.count * texts + use.text] -= nll[size_t(use.target)];
    begin += head_rows(chunk);
  }
}

void CaptionPairScorePass::run(nn::Context& ctx, const Inputs& inputs, const TextList& texts,
                               double* scores) {
  check(texts);
  const device::Arena::Mark start = ctx.arena.low();
  std::fill_n(scores, ctx.batch * texts.count(), 0.0);
  chunks_.assign(texts, int32_t(parts_.pad_id), most_rows());
  encode(ctx, inputs);
  const int64_t each = chunks_of_tile(ctx.batch, chunks_.rows());
  for (int64_t first = 0; first < chunks_.count(); first += each) {
    device::Arena::Scope scope(ctx.arena);
    const PairDecoder::Tile tile{first, std::min(each, chunks_.count() - first)};
    run_tile(ctx, tile);
    add_scores(ctx, tile, texts.count(), scores);
  }
  ctx.arena.pop_low(start);
}

// Plans the largest tile of each size of chunks, with the longest tables.
void CaptionPairScorePass::plan(nn::Context& ctx, const Inputs& inputs) {
  const device::Arena::Mark start = ctx.arena.low();
  encode(ctx, inputs);
  const int64_t step = most_rows() / TextChunks::kSizes;
  for (int64_t size = 1; size <= TextChunks::kSizes; ++size) {
    device::Arena::Scope scope(ctx.arena);
    const int64_t count = chunks_of_tile(ctx.batch, size * step);
    chunks_.assign_rows(count, size * step, parts_.decoder.config().length);
    run_tile(ctx, {0, count});
  }
  ctx.arena.pop_low(start);
}

}  // namespace

std::unique_ptr<PairScorePass> make_pair_score_pass(const PairScoreParts& parts) {
  return std::make_unique<CaptionPairScorePass>(parts);
}

}  // namespace models
