// What the router knows of the model it serves: text and limits, no weights.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "common/checkpoint/model_config.h"
#include "common/text/load_tokenizer.h"
#include "services/router/model/sampling_defaults.h"

namespace baton::router {

// Immutable after loading and thread-safe.
struct ServedModel {
  std::string name;
  checkpoint::ModelConfig config;
  text::ModelTokenizer tokenizer;
  SamplingDefaults sampling;

  // KV bytes of one token at 16 bits per element.
  uint64_t kv_logical_bytes_per_token() const {
    return uint64_t{2} * 2 * static_cast<uint64_t>(config.num_kv_cache_layers()) *
           static_cast<uint64_t>(config.num_kv_heads) * static_cast<uint64_t>(config.head_dim);
  }
};

// Reads config.json, generation_config.json (optional), tokenizer.json and chat templates of a
// HuggingFace model directory. An empty `name` takes the directory's. Reads files: blocks.
absl::StatusOr<std::unique_ptr<const ServedModel>> LoadServedModel(const std::string& directory,
                                                                   const std::string& name);

}  // namespace baton::router
