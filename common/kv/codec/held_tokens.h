// How many tokens a sequence holds.
#pragma once

#include <cstdint>

namespace baton::kv {

// Counts the tokens of one sequence: those of a prompt, or of an extension, once every stored layer
// has taken them in, then one more for every decode step. Not thread-safe.
class HeldTokens {
 public:
  // `prompt_tokens` are awaited in each of `layers` stored layers.
  HeldTokens(int32_t layers, int64_t prompt_tokens)
      : layers_(layers), awaited_(prompt_tokens), missing_layers_(layers) {}

  int64_t tokens() const { return tokens_; }
  int64_t awaited() const { return awaited_; }
  // More tokens are awaited in every layer, up to `prompt_tokens` in all.
  void Await(int64_t prompt_tokens) {
    awaited_ = prompt_tokens;
    missing_layers_ = layers_;
  }
  // `layers` more layers have the awaited tokens.
  void TakeLayers(int32_t layers) {
    missing_layers_ -= layers;
    if (missing_layers_ == 0) {
      tokens_ = awaited_;
    }
  }
  // The token at `position` is in a layer.
  void Append(int64_t position) { tokens_ = position + 1; }

 private:
  int32_t layers_;
  int64_t awaited_;
  int32_t missing_layers_;
  int64_t tokens_ = 0;
};

}  // namespace baton::kv
