// SPDX-License-Identifier: Apache-2.0
// Declares the fuzz targets: everything that reads bytes from outside. A target passes any bytes to
// the readers as a run would. A base::Error is a valid answer. Findings are all other exceptions, a
// failed CHECK (Exit::internal), an answer that breaks its own promise, a leak, unbounded memory
// and a hang.
//
// libfuzzer.cpp makes a fuzzer of one target. replay.cpp runs all targets over the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fuzz {

void deck(std::string_view input);        // deck.cpp: TOML, rows, overrides
void preprocess(std::string_view input);  // preprocess.cpp: strings of ops, made and applied
void tar(std::string_view input);         // tar.cpp: shards and their stored indexes
void weights(std::string_view input);     // weights.cpp: .npz, .npy headers, .safetensors
void image(std::string_view input);       // image.cpp: JPEG, PNG, WebP, GIF, and the ops on them
void tokenizer(std::string_view input);   // tokenizer.cpp: captions

// Runs the target and turns an exception that leaves it into a std::logic_error, which is a
// finding.
void run(void (*target)(std::string_view), std::string_view input);

// Throws std::logic_error if an answer breaks its promise.
void expect(bool promise, const char* what);

}  // namespace fuzz
