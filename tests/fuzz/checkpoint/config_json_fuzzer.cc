// config.json, generation_config.json and model.safetensors.index.json from outside. The input is
// split at the first zero byte into the first two; the whole is also read as an index.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/base/check.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/weight_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t split = text.find('\0');
  const std::string_view config_text = text.substr(0, split);
  const std::string_view generation_text =
      split == std::string_view::npos ? std::string_view() : text.substr(split + 1);
  const auto config = baton::checkpoint::ParseModelConfig(config_text, generation_text);
  if (config.ok()) {
    // What the loader divides by and allocates from.
    BATON_CHECK(config->num_heads % config->num_kv_heads == 0);
    BATON_CHECK(config->head_dim > 0 && config->head_dim % 2 == 0);
    BATON_CHECK(config->num_key_value_layers >= 1);
    BATON_CHECK(config->num_kv_cache_layers() <= config->num_layers);
    BATON_CHECK(config->sliding_window.size() == static_cast<size_t>(config->num_layers));
  }
  const auto index = baton::checkpoint::ParseWeightIndex(text);
  if (index.ok()) {
    for (const auto& [file, tensors] : *index) {
      BATON_CHECK(!file.empty() && file.front() != '/' && !tensors.empty());
    }
  }
  return 0;
}
