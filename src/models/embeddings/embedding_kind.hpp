// SPDX-License-Identifier: Apache-2.0
// Helpers of the kinds of embedding models: simclr.cpp, moco.cpp, ...
#pragma once

#include "models/embeddings/embedding_model.hpp"
#include "models/losses/losses.hpp"

namespace models {

// Makes the row of a kind for the registry of models. Options: the kind's keys, with a member
// parts(network, list) that makes the kind's parts.
template <class Options>
Registered embedding_row(const char* name, const char* doc) {
  return {name, doc,
          [] { return std::shared_ptr<config::Table::Variant>(std::make_shared<Options>()); },
          [](const config::Table::Variant& options,
             const MemoryOptions& memory) -> std::unique_ptr<Model> {
            const auto& own = dynamic_cast<const Options&>(options);
            return std::make_unique<EmbeddingModel>(
                own, memory, [&own](const EmbeddingNetwork& network, ParameterList& list) {
                  return own.parts(network, list);
                });
          }};
}

// Reports views that are not among the first `available` ones. `name`: the key that names them.
void check_views(config::Table& t, const char* name, const std::vector<int64_t>& views,
                 int64_t available);

// Binds model.KEY: the number of classes of a label that preprocessing makes.
void bind_made_classes(config::Table& t, const char* key, int64_t& classes, const char* doc);
// Returns the parts of a model that predicts a label made by preprocessing.
EmbeddingParts find_label(const EmbeddingOptions& options, const EmbeddingNetwork& network,
                          const MadeLabel& label);

// Returns the parts of a model whose outputs are compared with rows of a memory bank.
EmbeddingParts find_in_bank(const EmbeddingOptions& options, const NceLossOptions& loss,
                            const EmbeddingNetwork& network, ParameterList& list);

// Throws Error(Exit::config) unless the last head has one output, which the loss reads.
void need_one_output(const EmbeddingOptions& options, const EmbeddingNetwork& network);

}  // namespace models
