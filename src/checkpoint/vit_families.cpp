// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/vit_families.hpp"

#include <algorithm>
#include <utility>

namespace checkpoint {
namespace {

#define TRAINER_BLOCK "Transformer/encoderblock_{}/"
#define TRAINER_ATTENTION TRAINER_BLOCK "MultiHeadDotProductAttention_0/"
#define TRAINER_POOL "MAPHead_0/"
#define TRAINER_POOL_ATTENTION TRAINER_POOL "MultiHeadDotProductAttention_0/"

// Returns the rules of gated MLPs (SwiGLU), with timm's names and Meta's.
std::vector<Rule> timm_gates() {
  using enum How;
  return {
      {"blocks.{}.mlp.fc1_g.weight", TRAINER_BLOCK "MlpBlock_0/gate/kernel", turned},
      {"blocks.{}.mlp.fc1_g.bias", TRAINER_BLOCK "MlpBlock_0/gate/bias"},
      {"blocks.{}.mlp.fc1_x.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
      {"blocks.{}.mlp.fc1_x.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
      {"blocks.{}.mlp.w12.weight", TRAINER_BLOCK "MlpBlock_0/gate/kernel", part_turned, 0, 2},
      {"blocks.{}.mlp.w12.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", part_turned, 1, 2},
      {"blocks.{}.mlp.w12.bias", TRAINER_BLOCK "MlpBlock_0/gate/bias", part, 0, 2},
      {"blocks.{}.mlp.w12.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias", part, 1, 2},
      {"blocks.{}.mlp.w1.weight", TRAINER_BLOCK "MlpBlock_0/gate/kernel", turned},
      {"blocks.{}.mlp.w1.bias", TRAINER_BLOCK "MlpBlock_0/gate/bias"},
      {"blocks.{}.mlp.w2.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
      {"blocks.{}.mlp.w2.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
      {"blocks.{}.mlp.w3.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
      {"blocks.{}.mlp.w3.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"}};
}

// The pooling of SigLIP's image tower.
std::vector<Rule> timm_pool() {
  using enum How;
  return {{"attn_pool.latent", TRAINER_POOL "probe"},
          {"attn_pool.q.weight", TRAINER_POOL_ATTENTION "query/kernel", turned},
          {"attn_pool.q.bias", TRAINER_POOL_ATTENTION "query/bias"},
          {"attn_pool.kv.weight", TRAINER_POOL_ATTENTION "key/kernel", part_turned, 0, 2},
          {"attn_pool.kv.weight", TRAINER_POOL_ATTENTION "value/kernel", part_turned, 1, 2},
          {"attn_pool.kv.bias", TRAINER_POOL_ATTENTION "key/bias", part, 0, 2},
          {"attn_pool.kv.bias", TRAINER_POOL_ATTENTION "value/bias", part, 1, 2},
          {"attn_pool.proj.weight", TRAINER_POOL_ATTENTION "out/kernel", turned},
          {"attn_pool.proj.bias", TRAINER_POOL_ATTENTION "out/bias"},
          {"attn_pool.norm.weight", TRAINER_POOL "LayerNorm_0/scale"},
          {"attn_pool.norm.bias", TRAINER_POOL "LayerNorm_0/bias"},
          {"attn_pool.mlp.fc1.weight", TRAINER_POOL "MlpBlock_0/Dense_0/kernel", turned},
          {"attn_pool.mlp.fc1.bias", TRAINER_POOL "MlpBlock_0/Dense_0/bias"},
          {"attn_pool.mlp.fc2.weight", TRAINER_POOL "MlpBlock_0/Dense_1/kernel", turned},
          {"attn_pool.mlp.fc2.bias", TRAINER_POOL "MlpBlock_0/Dense_1/bias"}};
}

VitFamily timm() {
  using enum How;
  VitFamily out{
      "timm",
      "timm",
      "blocks.0.attn.qkv.weight",
      "cls_token",
      "pos_embed",
      {"patch_embed", "blocks", "norm", "norm_pre", "fc_norm", "reg_token", "register_tokens",
       "dist_token", "rope", "rel_pos_bias", "attn_pool", "pre_logits"},
      {{"patch_embed.proj.weight", "embedding/kernel", patches},
       {"patch_embed.proj.bias", "embedding/bias"},
       {"blocks.{}.norm1.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
       {"blocks.{}.norm1.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
       {"blocks.{}.attn.qkv.weight", TRAINER_ATTENTION "query/kernel", part_turned, 0},
       {"blocks.{}.attn.qkv.weight", TRAINER_ATTENTION "key/kernel", part_turned, 1},
       {"blocks.{}.attn.qkv.weight", TRAINER_ATTENTION "value/kernel", part_turned, 2},
       {"blocks.{}.attn.qkv.bias", TRAINER_ATTENTION "query/bias", part, 0},
       {"blocks.{}.attn.qkv.bias", TRAINER_ATTENTION "key/bias", part, 1},
       {"blocks.{}.attn.qkv.bias", TRAINER_ATTENTION "value/bias", part, 2},
       {"blocks.{}.attn.q_bias", TRAINER_ATTENTION "query/bias"},
       {"blocks.{}.attn.v_bias", TRAINER_ATTENTION "value/bias"},
       {"blocks.{}.attn.proj.weight", TRAINER_ATTENTION "out/kernel", turned},
       {"blocks.{}.attn.proj.bias", TRAINER_ATTENTION "out/bias"},
       {"blocks.{}.ls1.gamma", TRAINER_BLOCK "LayerScale_0/scale"},
       {"blocks.{}.ls2.gamma", TRAINER_BLOCK "LayerScale_1/scale"},
       {"blocks.{}.gamma_1", TRAINER_BLOCK "LayerScale_0/scale"},
       {"blocks.{}.gamma_2", TRAINER_BLOCK "LayerScale_1/scale"},
       {"norm_pre.weight", "pre_norm/scale"},
       {"norm_pre.bias", "pre_norm/bias"},
       {"reg_token", "registers"},
       {"register_tokens", "registers"},
       {"storage_tokens", "registers"},
       {"blocks.{}.norm2.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
       {"blocks.{}.norm2.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
       {"blocks.{}.mlp.fc1.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
       {"blocks.{}.mlp.fc1.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
       {"blocks.{}.mlp.fc2.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
       {"blocks.{}.mlp.fc2.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
       {"norm.weight", "Transformer/encoder_norm/scale"},
       {"norm.bias", "Transformer/encoder_norm/bias"},
       {"head.weight", "/head/kernel", turned},
       {"head.bias", "/head/bias"}},
      {"blocks.{}.attn.qkv.bias_mask"},
      "blocks.0.mlp.fc1.weight",
      "blocks.0.mlp.fc2.weight",
      "blocks.0.attn.qkv.bias_mask"};
  for (const std::vector<Rule>& more : {timm_gates(), timm_pool()})
    out.rules.insert(out.rules.end(), more.begin(), more.end());
  return out;
}

VitFamily transformers() {
  using enum How;
  return {
      "transformers",
      "transformers",
      "encoder.layer.0.attention.attention.query.weight",
      "embeddings.cls_token",
      "embeddings.position_embeddings",
      {"embeddings", "encoder", "layernorm"},
      {{"embeddings.patch_embeddings.projection.weight", "embedding/kernel", patches},
       {"embeddings.patch_embeddings.projection.bias", "embedding/bias"},
       {"embeddings.register_tokens", "registers"},
       {"encoder.layer.{}.layernorm_before.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
       {"encoder.layer.{}.layernorm_before.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
       {"encoder.layer.{}.attention.attention.query.weight", TRAINER_ATTENTION "query/kernel",
        turned},
       {"encoder.layer.{}.attention.attention.query.bias", TRAINER_ATTENTION "query/bias"},
       {"encoder.layer.{}.attention.attention.key.weight", TRAINER_ATTENTION "key/kernel", turned},
       {"encoder.layer.{}.attention.attention.key.bias", TRAINER_ATTENTION "key/bias"},
       {"encoder.layer.{}.attention.attention.value.weight", TRAINER_ATTENTION "value/kernel",
        turned},
       {"encoder.layer.{}.attention.attention.value.bias", TRAINER_ATTENTION "value/bias"},
       {"encoder.layer.{}.attention.output.dense.weight", TRAINER_ATTENTION "out/kernel", turned},
       {"encoder.layer.{}.attention.output.dense.bias", TRAINER_ATTENTION "out/bias"},
       {"encoder.layer.{}.layer_scale1.lambda1", TRAINER_BLOCK "LayerScale_0/scale"},
       {"encoder.layer.{}.layer_scale2.lambda1", TRAINER_BLOCK "LayerScale_1/scale"},
       {"encoder.layer.{}.norm1.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
       {"encoder.layer.{}.norm1.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
       {"encoder.layer.{}.norm2.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
       {"encoder.layer.{}.norm2.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
       {"encoder.layer.{}.mlp.fc1.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
       {"encoder.layer.{}.mlp.fc1.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
       {"encoder.layer.{}.mlp.fc2.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
       {"encoder.layer.{}.mlp.fc2.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
       {"encoder.layer.{}.mlp.weights_in.weight", TRAINER_BLOCK "MlpBlock_0/gate/kernel",
        part_turned, 0, 2},
       {"encoder.layer.{}.mlp.weights_in.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel",
        part_turned, 1, 2},
       {"encoder.layer.{}.mlp.weights_in.bias", TRAINER_BLOCK "MlpBlock_0/gate/bias", part, 0, 2},
       {"encoder.layer.{}.mlp.weights_in.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias", part, 1,
        2},
       {"encoder.layer.{}.mlp.weights_out.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel",
        turned},
       {"encoder.layer.{}.mlp.weights_out.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
       {"encoder.layer.{}.layernorm_after.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
       {"encoder.layer.{}.layernorm_after.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
       {"encoder.layer.{}.intermediate.dense.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel",
        turned},
       {"encoder.layer.{}.intermediate.dense.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
       {"encoder.layer.{}.output.dense.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
       {"encoder.layer.{}.output.dense.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
       {"layernorm.weight", "Transformer/encoder_norm/scale"},
       {"layernorm.bias", "Transformer/encoder_norm/bias"}},
      {"embeddings.mask_token"}};
}

VitFamily transformers_dinov3() {
  using enum How;
  return {"transformers_dinov3",
          "transformers' DINOv3",
          "layer.0.attention.q_proj.weight",
          "embeddings.cls_token",
          "",
          {"embeddings", "layer", "norm"},
          {{"embeddings.patch_embeddings.weight", "embedding/kernel", patches},
           {"embeddings.patch_embeddings.bias", "embedding/bias"},
           {"embeddings.register_tokens", "registers"},
           {"layer.{}.norm1.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
           {"layer.{}.norm1.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
           {"layer.{}.attention.q_proj.weight", TRAINER_ATTENTION "query/kernel", turned},
           {"layer.{}.attention.q_proj.bias", TRAINER_ATTENTION "query/bias"},
           {"layer.{}.attention.k_proj.weight", TRAINER_ATTENTION "key/kernel", turned},
           {"layer.{}.attention.k_proj.bias", TRAINER_ATTENTION "key/bias"},
           {"layer.{}.attention.v_proj.weight", TRAINER_ATTENTION "value/kernel", turned},
           {"layer.{}.attention.v_proj.bias", TRAINER_ATTENTION "value/bias"},
           {"layer.{}.attention.o_proj.weight", TRAINER_ATTENTION "out/kernel", turned},
           {"layer.{}.attention.o_proj.bias", TRAINER_ATTENTION "out/bias"},
           {"layer.{}.layer_scale1.lambda1", TRAINER_BLOCK "LayerScale_0/scale"},
           {"layer.{}.layer_scale2.lambda1", TRAINER_BLOCK "LayerScale_1/scale"},
           {"layer.{}.norm2.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
           {"layer.{}.norm2.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
           {"layer.{}.mlp.gate_proj.weight", TRAINER_BLOCK "MlpBlock_0/gate/kernel", turned},
           {"layer.{}.mlp.gate_proj.bias", TRAINER_BLOCK "MlpBlock_0/gate/bias"},
           {"layer.{}.mlp.up_proj.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
           {"layer.{}.mlp.up_proj.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
           {"layer.{}.mlp.down_proj.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
           {"layer.{}.mlp.down_proj.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
           {"norm.weight", "Transformer/encoder_norm/scale"},
           {"norm.bias", "Transformer/encoder_norm/bias"}},
          {"embeddings.mask_token"},
          nullptr,
          nullptr,
          nullptr,
          true};
}

// Returns the family with the names that version 5 of transformers gives its modules, and so to
// model.state_dict(). save_pretrained writes the older names of `of`. blocks, theirs: what the
// names of blocks begin with. The key stays, as for a user both are files of transformers.
VitFamily renamed_blocks(VitFamily of, const std::string& blocks, const std::string& theirs,
                         const char* mark) {
  const std::pair<std::string, std::string> parts[] = {
      {"attention.attention.query", "attention.q_proj"},
      {"attention.attention.key", "attention.k_proj"},
      {"attention.attention.value", "attention.v_proj"},
      {"attention.output.dense", "attention.o_proj"},
      {"intermediate.dense", "mlp.fc1"},
      {"output.dense", "mlp.fc2"}};
  of.mark = mark;
  of.shares_mark = true;
  of.parts.push_back(theirs.substr(0, theirs.find('.')));
  std::vector<Rule> rules;
  for (Rule rule : of.rules) {
    if (rule.theirs.starts_with(blocks)) {
      std::string rest = rule.theirs.substr(blocks.size());
      for (const auto& [old, renamed] : parts)
        if (rest.starts_with(old)) rest = renamed + rest.substr(old.size());
      rule.theirs = theirs + rest;
    }
    // Two older names may have one new name.
    if (std::ranges::none_of(
            rules, [&](const Rule& r) { return r.theirs == rule.theirs && r.ours == rule.ours; }))
      rules.push_back(rule);
  }
  of.rules = std::move(rules);
  return of;
}

VitFamily torchvision() {
  using enum How;
  return {"torchvision",
          "torchvision",
          "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
          "class_token",
          "encoder.pos_embedding",
          {"conv_proj", "encoder"},
          {{"conv_proj.weight", "embedding/kernel", patches},
           {"conv_proj.bias", "embedding/bias"},
           {"encoder.layers.encoder_layer_{}.ln_1.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
           {"encoder.layers.encoder_layer_{}.ln_1.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_weight",
            TRAINER_ATTENTION "query/kernel", part_turned, 0},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_weight",
            TRAINER_ATTENTION "key/kernel", part_turned, 1},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_weight",
            TRAINER_ATTENTION "value/kernel", part_turned, 2},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_bias",
            TRAINER_ATTENTION "query/bias", part, 0},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_bias",
            TRAINER_ATTENTION "key/bias", part, 1},
           {"encoder.layers.encoder_layer_{}.self_attention.in_proj_bias",
            TRAINER_ATTENTION "value/bias", part, 2},
           {"encoder.layers.encoder_layer_{}.self_attention.out_proj.weight",
            TRAINER_ATTENTION "out/kernel", turned},
           {"encoder.layers.encoder_layer_{}.self_attention.out_proj.bias",
            TRAINER_ATTENTION "out/bias"},
           {"encoder.layers.encoder_layer_{}.ln_2.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
           {"encoder.layers.encoder_layer_{}.ln_2.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
           {"encoder.layers.encoder_layer_{}.mlp.0.weight",
            TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
           {"encoder.layers.encoder_layer_{}.mlp.0.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
           {"encoder.layers.encoder_layer_{}.mlp.3.weight",
            TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
           {"encoder.layers.encoder_layer_{}.mlp.3.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
           {"encoder.ln.weight", "Transformer/encoder_norm/scale"},
           {"encoder.ln.bias", "Transformer/encoder_norm/bias"},
           {"heads.head.weight", "/head/kernel", turned},
           {"heads.head.bias", "/head/bias"}}};
}

// Image towers of CLIP and SigLIP.
VitFamily transformers_pairs() {
  using enum How;
  return {"transformers_clip",
          "transformers' CLIP and SigLIP",
          "embeddings.patch_embedding.weight",
          "embeddings.class_embedding",
          "embeddings.position_embedding.weight",
          {"embeddings", "pre_layrnorm", "encoder", "post_layernorm", "head"},
          {{"embeddings.patch_embedding.weight", "embedding/kernel", patches},
           {"embeddings.patch_embedding.bias", "embedding/bias"},
           {"pre_layrnorm.weight", "pre_norm/scale"},
           {"pre_layrnorm.bias", "pre_norm/bias"},
           {"encoder.layers.{}.layer_norm1.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
           {"encoder.layers.{}.layer_norm1.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
           {"encoder.layers.{}.self_attn.q_proj.weight", TRAINER_ATTENTION "query/kernel", turned},
           {"encoder.layers.{}.self_attn.q_proj.bias", TRAINER_ATTENTION "query/bias"},
           {"encoder.layers.{}.self_attn.k_proj.weight", TRAINER_ATTENTION "key/kernel", turned},
           {"encoder.layers.{}.self_attn.k_proj.bias", TRAINER_ATTENTION "key/bias"},
           {"encoder.layers.{}.self_attn.v_proj.weight", TRAINER_ATTENTION "value/kernel", turned},
           {"encoder.layers.{}.self_attn.v_proj.bias", TRAINER_ATTENTION "value/bias"},
           {"encoder.layers.{}.self_attn.out_proj.weight", TRAINER_ATTENTION "out/kernel", turned},
           {"encoder.layers.{}.self_attn.out_proj.bias", TRAINER_ATTENTION "out/bias"},
           {"encoder.layers.{}.layer_norm2.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
           {"encoder.layers.{}.layer_norm2.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
           {"encoder.layers.{}.mlp.fc1.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel", turned},
           {"encoder.layers.{}.mlp.fc1.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
           {"encoder.layers.{}.mlp.fc2.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel", turned},
           {"encoder.layers.{}.mlp.fc2.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
           {"post_layernorm.weight", "Transformer/encoder_norm/scale"},
           {"post_layernorm.bias", "Transformer/encoder_norm/bias"},
           {"head.probe", TRAINER_POOL "probe"},
           {"head.attention.in_proj_weight", TRAINER_POOL_ATTENTION "query/kernel", part_turned, 0},
           {"head.attention.in_proj_weight", TRAINER_POOL_ATTENTION "key/kernel", part_turned, 1},
           {"head.attention.in_proj_weight", TRAINER_POOL_ATTENTION "value/kernel", part_turned, 2},
           {"head.attention.in_proj_bias", TRAINER_POOL_ATTENTION "query/bias", part, 0},
           {"head.attention.in_proj_bias", TRAINER_POOL_ATTENTION "key/bias", part, 1},
           {"head.attention.in_proj_bias", TRAINER_POOL_ATTENTION "value/bias", part, 2},
           {"head.attention.out_proj.weight", TRAINER_POOL_ATTENTION "out/kernel", turned},
           {"head.attention.out_proj.bias", TRAINER_POOL_ATTENTION "out/bias"},
           {"head.layernorm.weight", TRAINER_POOL "LayerNorm_0/scale"},
           {"head.layernorm.bias", TRAINER_POOL "LayerNorm_0/bias"},
           {"head.mlp.fc1.weight", TRAINER_POOL "MlpBlock_0/Dense_0/kernel", turned},
           {"head.mlp.fc1.bias", TRAINER_POOL "MlpBlock_0/Dense_0/bias"},
           {"head.mlp.fc2.weight", TRAINER_POOL "MlpBlock_0/Dense_1/kernel", turned},
           {"head.mlp.fc2.bias", TRAINER_POOL "MlpBlock_0/Dense_1/bias"}},
          {"embeddings.position_ids"}};
}

// The image tower of open_clip and of OpenAI's CLIP.
VitFamily open_clip() {
  using enum How;
  return {
      "open_clip",
      "open_clip",
      "ln_pre.weight",
      "class_embedding",
      "positional_embedding",
      {"conv1", "ln_pre", "transformer", "ln_post", "attn_pool", "patch_dropout"},
      {{"conv1.weight", "embedding/kernel", patches},
       {"ln_pre.weight", "pre_norm/scale"},
       {"ln_pre.bias", "pre_norm/bias"},
       {"transformer.resblocks.{}.ln_1.weight", TRAINER_BLOCK "LayerNorm_0/scale"},
       {"transformer.resblocks.{}.ln_1.bias", TRAINER_BLOCK "LayerNorm_0/bias"},
       {"transformer.resblocks.{}.ls_1.gamma", TRAINER_BLOCK "LayerScale_0/scale"},
       {"transformer.resblocks.{}.attn.in_proj_weight", TRAINER_ATTENTION "query/kernel",
        part_turned, 0},
       {"transformer.resblocks.{}.attn.in_proj_weight", TRAINER_ATTENTION "key/kernel", part_turned,
        1},
       {"transformer.resblocks.{}.attn.in_proj_weight", TRAINER_ATTENTION "value/kernel",
        part_turned, 2},
       {"transformer.resblocks.{}.attn.in_proj_bias", TRAINER_ATTENTION "query/bias", part, 0},
       {"transformer.resblocks.{}.attn.in_proj_bias", TRAINER_ATTENTION "key/bias", part, 1},
       {"transformer.resblocks.{}.attn.in_proj_bias", TRAINER_ATTENTION "value/bias", part, 2},
       {"transformer.resblocks.{}.attn.out_proj.weight", TRAINER_ATTENTION "out/kernel", turned},
       {"transformer.resblocks.{}.attn.out_proj.bias", TRAINER_ATTENTION "out/bias"},
       {"transformer.resblocks.{}.ln_2.weight", TRAINER_BLOCK "LayerNorm_1/scale"},
       {"transformer.resblocks.{}.ln_2.bias", TRAINER_BLOCK "LayerNorm_1/bias"},
       {"transformer.resblocks.{}.ls_2.gamma", TRAINER_BLOCK "LayerScale_1/scale"},
       {"transformer.resblocks.{}.mlp.c_fc.weight", TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel",
        turned},
       {"transformer.resblocks.{}.mlp.c_fc.bias", TRAINER_BLOCK "MlpBlock_0/Dense_0/bias"},
       {"transformer.resblocks.{}.mlp.c_proj.weight", TRAINER_BLOCK "MlpBlock_0/Dense_1/kernel",
        turned},
       {"transformer.resblocks.{}.mlp.c_proj.bias", TRAINER_BLOCK "MlpBlock_0/Dense_1/bias"},
       {"ln_post.weight", "Transformer/encoder_norm/scale"},
       {"ln_post.bias", "Transformer/encoder_norm/bias"}}};
}

// Adds the rules of the blocks of an image tower, whose names begin with `blocks`, for the texts.
void add_text_blocks(const VitFamily& tower, const std::string& blocks, const std::string& prefix,
                     std::vector<Rule>& rules) {
  const std::string ours = "Transformer/";
  for (Rule rule : tower.rules) {
    if (!rule.theirs.starts_with(blocks) || !rule.ours.starts_with(ours)) continue;
    rule.theirs = prefix + rule.theirs;
    rule.ours = "Encoder_0/" + rule.ours.substr(ours.size());
    rules.push_back(rule);
  }
}

VitFamily open_clip_texts() {
  using enum How;
  VitFamily out{"open_clip",
                "open_clip",
                "text.token_embedding.weight",
                "text.cls_emb",
                "text.positional_embedding",
                {"text"},
                {{"text.token_embedding.weight", "Embed_0/embedding"},
                 {"text.ln_final.weight", "Encoder_0/encoder_norm/scale"},
                 {"text.ln_final.bias", "Encoder_0/encoder_norm/bias"},
                 {"text.text_projection.weight", "head/kernel", turned},
                 {"text.text_projection.bias", "head/bias"},
                 {"visual.head.proj.weight", "/head/kernel", turned},
                 {"visual.head.proj.bias", "/head/bias"},
                 {"visual.proj", "/head/kernel"},
                 {"logit_scale", "/t", number},
                 {"logit_bias", "/b", number}}};
  add_text_blocks(open_clip(), "transformer.resblocks.", "text.", out.rules);
  return out;
}

VitFamily transformers_texts() {
  using enum How;
  VitFamily out{"transformers_clip",
                "transformers' SigLIP",
                "text_model.embeddings.token_embedding.weight",
                "",
                "text_model.embeddings.position_embedding.weight",
                {"text_model"},
                {{"text_model.embeddings.token_embedding.weight", "Embed_0/embedding"},
                 {"text_model.final_layer_norm.weight", "Encoder_0/encoder_norm/scale"},
                 {"text_model.final_layer_norm.bias", "Encoder_0/encoder_norm/bias"},
                 {"text_model.head.weight", "head/kernel", turned},
                 {"text_model.head.bias", "head/bias"},
                 {"logit_scale", "/t", number},
                 {"logit_bias", "/b", number}},
                {"text_model.embeddings.position_ids"}};
  add_text_blocks(transformers_pairs(), "encoder.layers.", "text_model.", out.rules);
  return out;
}

// The decoder of a masked autoencoder whose layers have the names of `encoder`'s, which begin with
// `blocks`, behind other first parts.
VitFamily mae_decoder(const char* key, const char* mark, const VitFamily& encoder,
                      const std::string& blocks, const std::string& decoder_blocks) {
  using enum How;
  VitFamily out{key,
                encoder.name,
                mark,
                "",
                "decoder_pos_embed",
                {"decoder_embed", decoder_blocks, "decoder_norm", "decoder_pred"},
                {{"decoder_embed.weight", "embed/kernel", turned},
                 {"decoder_embed.bias", "embed/bias"},
                 {"mask_token", "mask_token"},
                 {"decoder_norm.weight", "Transformer/encoder_norm/scale"},
                 {"decoder_norm.bias", "Transformer/encoder_norm/bias"},
                 {"decoder_pred.weight", "pixels/kernel", turned},
                 {"decoder_pred.bias", "pixels/bias"}}};
  for (Rule rule : encoder.rules) {
    if (!rule.theirs.starts_with(blocks)) continue;
    rule.theirs = decoder_blocks + rule.theirs.substr(blocks.size());
    out.rules.push_back(rule);
  }
  return out;
}

}  // namespace

const std::vector<VitFamily>& text_families() {
  static const std::vector<VitFamily> all = {open_clip_texts(), transformers_texts()};
  return all;
}

const std::vector<VitFamily>& decoder_families() {
  static const std::vector<VitFamily> all = {
      mae_decoder("mae", "decoder_blocks.0.attn.qkv.weight", timm(), "blocks", "decoder_blocks"),
      mae_decoder("transformers_mae", "decoder_layers.0.attention.attention.query.weight",
                  transformers(), "encoder.layer", "decoder_layers")};
  return all;
}

const std::vector<VitFamily>& vit_families() {
  static const std::vector<VitFamily> all = {
      timm(),
      transformers(),
      renamed_blocks(transformers(), "encoder.layer.{}.", "layers.{}.",
                     "layers.0.attention.q_proj.weight"),
      renamed_blocks(transformers(), "encoder.layer.{}.", "encoder.layer.{}.",
                     "encoder.layer.0.attention.q_proj.weight"),
      transformers_dinov3(),
      renamed_blocks(transformers_dinov3(), "layer.{}.", "model.layer.{}.",
                     "model.layer.0.attention.q_proj.weight"),
      torchvision(),
      transformers_pairs(),
      open_clip()};
  return all;
}

std::vector<Rule> halved_rules(const VitFamily& family) {
  std::vector<Rule> out;
  for (Rule rule : family.rules) {
    const std::string ours = rule.ours;
    const bool kernel = ours == TRAINER_BLOCK "MlpBlock_0/Dense_0/kernel",
               bias = ours == TRAINER_BLOCK "MlpBlock_0/Dense_0/bias";
    const bool whole = rule.how == How::same || rule.how == How::turned;
    if ((kernel || bias) && whole) {
      rule.how = kernel ? How::part_turned : How::part;
      rule.parts = 2;
      Rule gate = rule;
      gate.ours =
          kernel ? TRAINER_BLOCK "MlpBlock_0/gate/kernel" : TRAINER_BLOCK "MlpBlock_0/gate/bias";
      out.push_back(gate);
      rule.part = 1;
    }
    out.push_back(rule);
  }
  return out;
}

}  // namespace checkpoint
