// CapPa (arXiv 2306.07915): a ViT encoder and a caption decoder that predicts each example either autoregressively or, from mask
// tokens, in parallel (cappa.md 1.6).
#pragma once

#include <cmath>

#include "models/caption_decoder.hpp"
#include "models/caption_head.hpp"
#include "models/vit.hpp"

namespace models {

class Cappa : public Model {
 public:
  Cappa(const CappaOptions& options, const LossOptions& loss, const MemoryOptions& memory);

  std::vector<std::string> blocks() const override { return list_.blocks(); }
  std::vector<shard::Parameter> parameters() const override { return list_.parameters(); }
  std::vector<std::string> patch_tables() const override;
  std::vector<InputSpec> inputs() const override;
  std::map<std::string, FeatureSpec> features() const override;
  int64_t label_limit() const override { return options_.vocab_size; }
  double uniform_loss() const override { return std::log(double(options_.vocab_size)); }  // a mean per token
  const char* limit_key() const override { return "model.vocab_size"; }
  void take_bytes(const kernels::PixelRange& range) override { bytes_ = true, encoder_.take_bytes(range); }
  void prepare(const HostBatch& batch, bool train, base::Stream stream, const Draws* draws, const Inputs& into) const override;
  void forward_backward(nn::Context& ctx, const Inputs& inputs, int64_t global_batch, View sums) override;
  std::string changing_arguments() const override;
  void evaluate(nn::Context& ctx, const Inputs& inputs, double* nll, double* weight) override;
  int64_t forward_flops() const override;
  int64_t input_flops() const override { return encoder_.input_flops(); }
  int64_t shape_sets(int64_t batch, int64_t slices) const override;

  // logits [batch * length, vocabulary] of a forward pass; ctx.keep must be false.
  void logits(nn::Context& ctx, const Inputs& inputs, View out);
  // Which examples are predicted in parallel, and the ids fed to the decoder (cappa.md 1.6): a pure function of stream, position.
  Draws draw(const int32_t* labels, int64_t examples, int64_t first_position, bool train, base::Stream stream) const;
  const CappaOptions& options() const { return options_; }

 protected:
  // The text rows that the loss depends on. Tests compute all instead.
  virtual void select(const nn::Context& ctx, const Inputs& inputs, CaptionDecoder::Selection& selection);

 private:
  CaptionDecoder::Memory memory(const Inputs& inputs, View encoded) const;
  void place(nn::Context& ctx);

  CappaOptions options_;
  LossOptions loss_;
  ParameterList list_;
  Vit encoder_;
  CaptionDecoder decoder_;
  CaptionHead head_;
  bool bytes_ = false;  // images come as bytes
  CaptionDecoder::Selection selection_;  // of the pass under way
  std::vector<int64_t> seen_, wanted_;   // by example: positions that others or the loss depend on; the loss alone
  std::vector<float> row_loss_;
};

std::unique_ptr<Model> make_cappa(const config::Table::Variant& options, const LossOptions& loss, const MemoryOptions& memory);

}  // namespace models
