// SPDX-License-Identifier: Apache-2.0
// Generates a caption of every image, compares it with the captions of the data, and writes all of
// them to captions.jsonl. A caption depends only on its image and the keys, so captions and metrics
// are the same for any number of ranks.
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "data/stream/host_batch.hpp"
#include "eval/captions/caption_metrics.hpp"
#include "eval/captions/generated_caption.hpp"
#include "eval/evaluator.hpp"
#include "eval/input_images.hpp"
#include "eval/shuffled_images.hpp"
#include "io/waiting.hpp"

namespace eval {
namespace {

// Keys that [caption] does not have.
struct ComparedOptions : CaptioningOptions {
  ShuffledImages shuffled;
  int64_t images = 8;
  void bind(config::Table& t) override {
    CaptioningOptions::bind(t);
    shuffled.bind(t);
    t.key("images", images, "first images of the set that images.npy shows beside the captions")
        .min(0)
        .on_resume(config::OnResume::may_change);
  }
};

// A caption with the captions of the data.
struct Example {
  int64_t position = 0;
  int64_t sample = 0;  // with the references: a substitute if the one at `position` is broken
  double log_likelihood = 0;
  int64_t ended = 0;
  std::string caption;
  std::string attention;  // attention_json; "" = none
  std::vector<std::string> references;
};

void put(std::string& out, int64_t value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put(std::string& out, const std::string& text) {
  put(out, int64_t(text.size()));
  out += text;
}
int64_t take(const std::string& from, size_t& at) {
  int64_t value = 0;
  from.copy(reinterpret_cast<char*>(&value), sizeof value, at);
  at += sizeof value;
  return value;
}
std::string take_text(const std::string& from, size_t& at) {
  const size_t size = size_t(take(from, at));
  at += size;
  return from.substr(at - size, size);
}

std::string packed(const Example& e) {
  std::string out;
  put(out, e.position);
  put(out, e.sample);
  put(out, std::bit_cast<int64_t>(e.log_likelihood));
  put(out, e.ended);
  put(out, e.caption);
  put(out, e.attention);
  put(out, int64_t(e.references.size()));
  for (const std::string& text : e.references) put(out, text);
  return out;
}

Example take_example(const std::string& from, size_t& at) {
  Example e;
  e.position = take(from, at);
  e.sample = take(from, at);
  e.log_likelihood = std::bit_cast<double>(take(from, at));
  e.ended = take(from, at);
  e.caption = take_text(from, at);
  e.attention = take_text(from, at);
  for (int64_t count = take(from, at); count > 0; --count)
    e.references.push_back(take_text(from, at));
  return e;
}

// Returns the examples of all ranks, by position.
std::vector<Example> of_all_ranks(comm::Comm& world, const std::vector<Example>& mine, int64_t n) {
  std::string text;
  for (const Example& e : mine) text += packed(e);
  std::vector<Example> all(static_cast<size_t>(n));
  for (const std::string& from : world.gather_text(text))
    for (size_t at = 0; at < from.size();) {
      Example e = take_example(from, at);
      const auto place = size_t(e.position);
      all.at(place) = std::move(e);
    }
  return all;
}

class Captioning : public Evaluator {
 public:
  explicit Captioning(const ComparedOptions& options) : options_(options) {}

  void check(const data::Dataset& set) const override {
    if (set.size() == 0)
      base::fail(base::Exit::data, "[data.{}] holds no image to caption", set.name());
    check_caption_tokenizer(set.tokenizer(kCaptionField), set.name());
    options_.shuffled.check(set);
  }

  Result run(const Context& context) override {
    const int64_t n = context.dataset.size();
    std::vector<Example> mine;
    const Rounds rounds(context, context.dataset, "images", [&](int64_t, std::string_view bytes) {
      size_t at = 0;
      mine.push_back(take_example(std::string(bytes), at));
    });
    const data::Tokenizer& tokenizer = *context.dataset.tokenizer(kCaptionField);
    auto loader = rounds.loader(context, options_.shuffled.place(n));
    auto& pass = context.pass_as<models::CaptionPass>();
    const models::DecodeOptions decode = options_.decode_with(tokenizer);
    std::vector<models::Caption> captions;
    for (int64_t round = 0; round < rounds.count(); ++round) {
      if (context.interrupted()) return {.values = {}, .examples = 0, .interrupted = true};
      data::BatchPtr batch = loader->next();
      const int64_t first = rounds.first(round),
                    count = std::clamp<int64_t>(n - first, 0, context.batch);
      const models::HostBatch host = data::host_batch(*batch, first);
      context.forward(host, [&](nn::Context& ctx, const models::Inputs& in) {
        pass.run(ctx, in, decode, count, first, captions);
      });
      for (int64_t b = 0; b < count; ++b) {
        const models::Caption& c = captions[size_t(b)];
        auto [sample, references] = references_of(context, first + b);
        mine.push_back(
            {first + b, sample, c.log_likelihood, c.ended, text_of(c, tokenizer),
             first + b < decode.attention ? attention_json(c, tokenizer, pass.grid()) : "",
             std::move(references)});
        if (context.journal) context.journal->add(first + b, packed(mine.back()));
      }
      if (context.journal) context.journal->write();
    }
    const std::vector<Example> all = of_all_ranks(context.world, mine, n);
    // Captions of other images would mislead whoever reads them beside the references.
    if (!context.folder.empty() && !options_.shuffled.on) {
      write(context, all);
      write_images(context);
    }
    return result(all);
  }

 private:
  // Returns the sample that the loader takes at this position, and its captions.
  static std::pair<int64_t, std::vector<std::string>> references_of(const Context& context,
                                                                    int64_t position) {
    data::Trace trace;
    int64_t sample = position;
    if (context.loader.substitutes)
      sample = data::get_or_substitute(context.dataset, position, position, nullptr, &trace).index;
    else
      context.dataset.get(position, position, nullptr, &trace);
    return {sample, trace.captions[kCaptionField].texts};
  }

  static void write(const Context& context, const std::vector<Example>& all) {
    using Json = nlohmann::ordered_json;
    std::string lines;
    for (const Example& e : all) {
      Json line{{"position", e.position}, {"key", context.dataset.key(e.sample)},
                {"caption", e.caption},   {"log_likelihood", e.log_likelihood},
                {"ended", e.ended != 0},  {"references", e.references}};
      if (!e.attention.empty()) line.update(Json::parse(e.attention));
      lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
    io::write_or_wait(context.folder + "/captions.jsonl", lines);
  }

  void write_images(const Context& context) const {
    const std::string npy = input_images_npy(context.dataset, options_.images);
    if (!npy.empty()) io::write_or_wait(context.folder + "/images.npy", npy, false);
  }

  static Result result(const std::vector<Example>& all) {
    std::vector<std::string> captions;
    std::vector<std::vector<std::string>> texts;
    double likelihood = 0, ended = 0;
    for (const Example& e : all) {
      captions.push_back(e.caption);
      texts.push_back(e.references);
      likelihood += e.log_likelihood;
      ended += double(e.ended);
    }
    const CaptionScores scores = caption_metrics(captions, texts).set;
    Result result{{}, int64_t(all.size()), "images"};
    for (size_t i = 0; i < scores.bleu.size(); ++i)
      result.values.emplace_back(fmt::format("bleu{}", i + 1), scores.bleu[i]);
    result.values.emplace_back("rouge_l", scores.rouge_l);
    result.values.emplace_back("cider_d", scores.cider_d);
    result.values.emplace_back("log_likelihood", likelihood / double(all.size()));
    result.values.emplace_back("ended", ended / double(all.size()));
    return result;
  }

  ComparedOptions options_;
};

}  // namespace

Registered captioning_row() {
  return {
      "captioning",
      "captions of the images, compared with those of the data; writes captions.jsonl",
      [](const config::Table::Variant&) {
        std::vector<Metric> out;
        for (int n = 1; n <= 4; ++n)
          out.push_back({fmt::format("bleu{}", n), "1",
                         fmt::format("BLEU-{} of the captions of the whole set, as COCO's "
                                     "published scorer defines it",
                                     n)});
        out.push_back({"rouge_l", "1", "mean ROUGE-L of the captions"});
        out.push_back({"cider_d", "1", "mean CIDEr-D of the captions, from 0 to 10"});
        out.push_back({"log_likelihood", "nats/caption",
                       "mean log-likelihood of the generated captions under the model"});
        out.push_back({"ended", "1", "share of the captions that ended before the largest length"});
        return out;
      },
      "generate captions",
      nullptr,
      [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<ComparedOptions>()); },
      [](const config::Table::Variant& options) -> std::unique_ptr<Evaluator> {
        return std::make_unique<Captioning>(dynamic_cast<const ComparedOptions&>(options));
      },
      [](const models::Model& model,
         const config::Table::Variant& options) -> std::unique_ptr<models::ForwardPass> {
        auto* captioner = dynamic_cast<const models::Captioner*>(&model);
        if (!captioner) return nullptr;
        return captioner->make_caption_pass(
            dynamic_cast<const CaptioningOptions&>(options).limits());
      }};
}

}  // namespace eval
