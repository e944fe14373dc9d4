// SPDX-License-Identifier: Apache-2.0
// Tests the pass that scores all pairs of images and texts: against the pass that scores each
// example's own caption, in batches and lists of all sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/decoders/text_chunks.hpp"
#include "rig.hpp"

namespace {

using models::TextChunks;
using models::TextList;

models::CappaOptions pair_options() {
  models::CappaOptions o = rig::small_options();
  o.seq_len = 11;
  o.masked_pred_prob = 0;
  o.encoder = {.variant = "", .patch = 8, .depth = 2, .width = 48, .mlp = 80, .heads = 3};
  o.decoder = {.depth = 3, .width = 40, .mlp = 72, .heads = 4, .bias = true};
  return o;
}

// Texts with all numbers of tokens from 0 to the length.
TextList made_texts(const models::CappaOptions& o, int64_t count, int64_t length) {
  TextList list{length, {}};
  const base::Stream draw(11, "texts");
  for (int64_t t = 0; t < count; ++t)
    for (int64_t l = 0; l < length; ++l) {
      const auto word = 3 + int32_t(draw.bits(uint64_t(t * 100 + l)) % uint32_t(o.vocab_size - 3));
      list.ids.push_back(l < (3 * t) % (length + 1) ? word : 0);
    }
  return list;
}

TextList part_of(const TextList& list, int64_t first, int64_t count) {
  const auto begin = list.ids.begin() + first * list.length;
  return {list.length, {begin, begin + count * list.length}};
}

void make_weights(rig::World& world) { world.shake(5, "pairs", 1 / std::sqrt(20.0)); }

// Places images [first, first + examples) of a batch, each with the same caption.
void place(rig::World& world, const rig::MadeBatch& made, int64_t first, int64_t examples,
           const TextList& caption) {
  const models::CappaOptions& o = world.model.options();
  const int64_t pixels = o.height() * o.width() * 3;
  rig::Ints labels;
  for (int64_t b = 0; b < examples; ++b) {
    labels.insert(labels.end(), caption.ids.begin(), caption.ids.end());
    labels.resize(size_t((b + 1) * o.length()), int32_t(o.pad_id));
  }
  const models::HostBatch host{
      .features = {{"image", device::view(made.image.data() + first * pixels, examples * pixels)},
                   {"labels", device::view(labels.data(), int64_t(labels.size()))}},
      .examples = examples,
      .first_position = first};
  world.prepare(host, false, base::Stream());
}

std::vector<double> scores_of(const models::CappaOptions& o, int64_t first, int64_t examples,
                              const TextList& texts, int64_t slices = 1) {
  rig::World world(o, examples, slices);
  make_weights(world);
  const rig::MadeBatch made(o, 8);
  place(world, made, first, examples, made_texts(o, 1, o.length()));
  return world.pair_scores(texts);
}

TEST(PairScore, IsTheScoreOfEachPairAlone) {
  for (int64_t length : {11, 6})
    for (bool learned : {true, false}) {
      models::CappaOptions o = pair_options();
      o.learned_positions = learned;
      const int64_t images = 6, count = 23;
      const TextList texts = made_texts(o, count, length);
      const std::vector<double> scores = scores_of(o, 0, images, texts);
      rig::World world(o, images);
      make_weights(world);
      const rig::MadeBatch made(o, 8);
      std::vector<double> nll(static_cast<size_t>(images)), weight(nll);
      for (int64_t t = 0; t < count; ++t) {
        place(world, made, 0, images, part_of(texts, t, 1));
        world.evaluate(nll.data(), weight.data());
        for (int64_t b = 0; b < images; ++b) {
          EXPECT_NEAR(scores[size_t(b * count + t)], -nll[size_t(b)], 2e-6 * nll[size_t(b)])
              << "image " << b << ", text " << t;
          EXPECT_EQ(weight[size_t(b)], double((3 * t) % (length + 1)));
        }
      }
    }
}

// Positions that carry no weight in a caption are computed and not counted.
// With another model.pad_id, 0 is a token like others.
TEST(PairScore, LeavesOutPaddingBetweenTokens) {
  for (const int32_t pad : {0, 3}) {
    models::CappaOptions o = pair_options();
    o.pad_id = pad;
    TextList texts{5, {7, pad, 9, 4, pad, 7, pad, pad, pad, pad, 3 - pad, 7, pad, pad, pad}};
    const std::vector<double> scores = scores_of(o, 0, 2, texts);
    rig::World world(o, 2);
    make_weights(world);
    const rig::MadeBatch made(o, 8);
    const std::vector<int64_t> tokens = {3, 1, 2};
    for (size_t t = 0; t < tokens.size(); ++t) {
      place(world, made, 0, 2, part_of(texts, int64_t(t), 1));
      double nll[2], weight[2];
      world.evaluate(nll, weight);
      EXPECT_EQ(weight[0], double(tokens[t])) << "pad " << pad;
      for (size_t b : {0, 1}) EXPECT_NEAR(scores[3 * b + t], -nll[b], 2e-6 * nll[b]);
    }
    EXPECT_EQ(world.model.make_pair_score_pass()->tokens(texts), tokens) << "pad " << pad;
  }
}

// A list of several chunks, in batches of 1 to 8 images and cut into slices.
TEST(PairScore, HasTheSameBitsInEveryBatch) {
  const models::CappaOptions o = pair_options();
  const TextList texts = made_texts(o, 120, 11);
  const std::vector<double> all = scores_of(o, 0, 8, texts);
  for (double s : all) ASSERT_TRUE(std::isfinite(s));
  EXPECT_EQ(scores_of(o, 0, 8, texts, 4), all);
  for (auto [first, examples] : {std::pair{0, 1}, {7, 1}, {2, 3}, {4, 4}, {0, 5}}) {
    const std::vector<double> some = scores_of(o, first, examples, texts);
    const std::vector<double> want(all.begin() + first * 120,
                                   all.begin() + (first + examples) * 120);
    EXPECT_EQ(some, want) << "images from " << first << ", " << examples;
  }
}

// Other texts change the number of rows of products, and so the order of their sums.
TEST(PairScore, DoesNotDependOnTheOtherTexts) {
  const models::CappaOptions o = pair_options();
  const TextList texts = made_texts(o, 120, 11);
  const std::vector<double> all = scores_of(o, 0, 2, texts);
  for (int64_t t : {0, 1, 50, 119}) {
    const std::vector<double> one = scores_of(o, 0, 2, part_of(texts, t, 1));
    for (int64_t b : {0, 1})
      EXPECT_NEAR(one[size_t(b)], all[size_t(b * 120 + t)],
                  1e-6 * std::abs(all[size_t(b * 120 + t)]));
  }
  EXPECT_EQ(scores_of(o, 0, 2, part_of(texts, 0, 1)), (std::vector<double>{0, 0}))
      << "a text without tokens";
  EXPECT_TRUE(scores_of(o, 0, 2, {11, {}}).empty());
}

// A small budget for logits cuts the chunks of the head, not the scores.
TEST(PairScore, NeedsNotAllLogitsAtOnce) {
  models::CappaOptions o = pair_options();
  const TextList texts = made_texts(o, 60, 11);
  const std::vector<double> all = scores_of(o, 0, 2, texts);
  o.vocab_size = 61;
  o.logits_mb = 0;  // one row at a time
  const std::vector<double> few = scores_of(o, 0, 2, texts);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_NEAR(few[i], all[i], 1e-6 * std::abs(all[i]));
}

TEST(PairScore, RefusesTextsThatTheModelCannotRead) {
  const models::CappaOptions o = pair_options();
  for (const auto& [texts, part] :
       {std::pair{TextList{3, {4, 61, 0}}, "token 61 of text 0"},
        {TextList{2, {4, 5, 4, -1}}, "token -1 of text 1"},
        {TextList{12, rig::Ints(12, 4)}, "12 tokens; the model has 11"}}) {
    try {
      scores_of(o, 0, 1, texts);
      ADD_FAILURE() << part;
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::Exit::data);
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
}

// Texts that begin alike share rows: with one word of two, rows have several targets.
TEST(PairScore, ComputesLikeBeginningsOnce) {
  const models::CappaOptions o = pair_options();
  const base::Stream draw(17, "alike");
  TextList list{11, {}};
  for (int64_t t = 0; t < 70; ++t)
    for (int64_t l = 0; l < 11; ++l) {
      const auto n = uint64_t(t * 11 + l);
      list.ids.push_back(l <= t % 11 ? 5 + int32_t(draw.bits(n) % 2) : 0);
    }
  const std::vector<double> all = scores_of(o, 0, 3, list);
  rig::World world(o, 3);
  make_weights(world);
  const rig::MadeBatch made(o, 8);
  std::vector<double> nll(3), weight(3);
  for (int64_t t = 0; t < 70; ++t) {
    place(world, made, 0, 3, part_of(list, t, 1));
    world.evaluate(nll.data(), weight.data());
    for (int64_t b = 0; b < 3; ++b)
      EXPECT_NEAR(all[size_t(b * 70 + t)], -nll[size_t(b)], 2e-6 * nll[size_t(b)])
          << "image " << b << ", text " << t;
  }
}

// Returns the tokens that the rows of a target's texts have read, and the target itself.
rig::Ints tokens_up_to(const TextChunks::Chunk& chunk, const TextChunks::Target& target) {
  rig::Ints tokens(1, target.label);
  for (int32_t row = target.row; chunk.rows[size_t(row)].parent >= 0;) {
    const TextChunks::Row& r = chunk.rows[size_t(row)];
    EXPECT_LT(r.parent, row);
    EXPECT_EQ(chunk.rows[size_t(r.parent)].position, r.position - 1);
    tokens.insert(tokens.begin(), r.id);
    row = r.parent;
  }
  return tokens;
}

// Texts of `words` different words, or of words of their own if 0, with up to `longest` tokens.
TextList drawn_texts(uint64_t i, int64_t count, int64_t longest, int32_t words) {
  const base::Stream draw = base::Stream(3, "chunks").sub(i);
  const int64_t length = 24;
  TextList list{length, rig::Ints(size_t(count * length), 0)};
  for (int64_t t = 0; t < count; ++t) {
    const int64_t n = int64_t(draw.bits(uint64_t(2 + t)) % uint64_t(longest + 1));
    for (int64_t l = 0; l < n; ++l)
      list.ids[size_t(t * length + l)] =
          words ? 1 + int32_t(draw.sub(1).bits(uint64_t(t * length + l)) % uint32_t(words))
                : int32_t(1000 * t + l + 1);
  }
  return list;
}

TEST(TextChunks, HoldEveryPrefixOnce) {
  for (uint64_t i = 0; i < 60; ++i) {
    const int64_t count = int64_t(i * 37 % 90), most = 64;
    const auto words = int32_t(i % 3);
    const TextList list = drawn_texts(i, count, i % 2 ? 24 : 6, words);
    TextChunks chunks;
    chunks.assign(list, 0, most);
    EXPECT_LE(chunks.rows(), most);
    EXPECT_EQ(chunks.rows() % (most / TextChunks::kSizes), 0);
    std::vector<rig::Ints> seen(static_cast<size_t>(count));  // tokens of each text
    for (int64_t c = 0; c < chunks.count(); ++c) {
      const TextChunks::Chunk& chunk = chunks[c];
      EXPECT_EQ(int64_t(chunk.rows.size()), chunks.rows());
      EXPECT_LE(int64_t(chunk.targets.size()), chunks.rows() * TextChunks::kTargetsPerRow);
      std::vector<rig::Ints> prefixes;
      for (size_t t = 0; t < chunk.targets.size(); ++t) {
        const TextChunks::Target& target = chunk.targets[t];
        const bool new_row = t == 0 || target.row != chunk.targets[t - 1].row;
        EXPECT_EQ(target.first, new_row ? int32_t(t) : chunk.targets[t - 1].first);
        if (t) {
          EXPECT_GE(target.row, chunk.targets[t - 1].row);
        }
        prefixes.push_back(tokens_up_to(chunk, target));
        EXPECT_LE(int64_t(prefixes.back().size()), chunks.depth());
      }
      for (const TextChunks::Use& use : chunk.uses) {
        rig::Ints& text = seen[size_t(use.text)];
        const rig::Ints& prefix = prefixes[size_t(use.target)];
        text.push_back(prefix.back());
        EXPECT_EQ(text, prefix) << "text " << use.text;
      }
      std::ranges::sort(prefixes);
      EXPECT_EQ(std::ranges::adjacent_find(prefixes), prefixes.end()) << "a prefix twice";
    }
    for (int64_t t = 0; t < count; ++t) {
      rig::Ints want = part_of(list, t, 1).ids;
      while (!want.empty() && want.back() == 0) want.pop_back();
      EXPECT_EQ(seen[size_t(t)], want) << "text " << t;
    }
  }
}

// A hundred texts of eight tokens that differ in the first one have 1 + 7 x 100 rows.
TEST(TextChunks, ShareTheRowsOfTheirBeginnings) {
  TextList list{8, {}};
  for (int32_t t = 0; t < 100; ++t)
    for (int32_t l = 0; l < 8; ++l) list.ids.push_back(100 * l + t + 1);
  TextChunks chunks;
  chunks.assign(list, 0, 256);
  EXPECT_EQ(chunks.count() * chunks.rows(), 704) << "4 chunks of 1 + 7 x 25 rows";
  for (int32_t t = 0; t < 100; ++t)
    for (int32_t l = 0; l < 7; ++l) list.ids[size_t(8 * t + l)] = l + 1;
  chunks.assign(list, 0, 256);
  EXPECT_EQ(chunks.count(), 1);
  EXPECT_EQ(chunks.rows(), 16) << "8 rows; the last has a hundred targets";
}

}  // namespace
