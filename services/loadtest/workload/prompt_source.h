// Prompts that mean nothing, of exact lengths.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "proto/baton/inference/v1/inference.pb.h"

namespace baton::loadtest {

// Draws tokens that a model takes as ordinary ones. Immutable.
class PromptSource {
 public:
  // The tokens of `model` except those that end a sequence; where these lie behind at least half of
  // the vocabulary, as in most tokenizers, all from the first of them on are left out, too, because
  // special tokens are there.
  explicit PromptSource(const inference::v1::ModelInfo& model);

  // Appends `count` random tokens.
  void AppendTokens(int64_t count, std::mt19937_64& random, std::vector<uint32_t>* tokens) const;
  // Appends `count` random English words, each mostly one or two tokens.
  static void AppendWords(int64_t count, std::mt19937_64& random, std::string* text);

 private:
  uint32_t tokens_;                // drawn from [0, tokens_)
  std::vector<uint32_t> avoided_;  // below tokens_
};

}  // namespace baton::loadtest
