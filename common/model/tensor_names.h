// Names of tensors in HuggingFace checkpoints (swiftkv.md 2.2 and 3.2).
#pragma once

#include <cstdint>
#include <string>

namespace baton::model {

inline constexpr const char* kEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kFinalNorm = "model.norm.weight";
inline constexpr const char* kLmHead = "lm_head.weight";
inline constexpr const char* kSwiftKvNorm = "model.norm_swiftkv.weight";

// "model.layers.<layer>.<part>".
inline std::string LayerTensor(int32_t layer, const char* part) {
  return "model.layers." + std::to_string(layer) + "." + part;
}

}  // namespace baton::model
