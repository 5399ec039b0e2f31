#include "common/checkpoint/fingerprint.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::checkpoint {
namespace {

constexpr size_t kSampleBytes = 1024;

uint64_t SampleDigest(std::span<const std::byte> bytes) {
  const size_t length = std::min(bytes.size(), kSampleBytes);
  uint64_t digest = bytes.size();
  for (const size_t begin : {size_t{0}, (bytes.size() - length) / 2, bytes.size() - length}) {
    digest = XXH3_64bits_withSeed(bytes.data() + begin, length, digest);
  }
  return digest;
}

}  // namespace

void Fingerprint::Add(const ModelConfig& config) {
  absl::StrAppend(&collected_,
                  "config ",
                  static_cast<int>(config.architecture),
                  " ",
                  config.hidden_size,
                  " ",
                  config.num_layers,
                  " ",
                  config.num_heads,
                  " ",
                  config.num_kv_heads,
                  " ",
                  config.head_dim,
                  " ",
                  config.intermediate_size,
                  " ");
  absl::StrAppend(&collected_,
                  config.vocab_size,
                  " ",
                  config.max_position_embeddings,
                  " ",
                  config.rms_norm_eps,
                  " ",
                  config.rope_theta,
                  " ",
                  config.rope_scaling.factor,
                  " ",
                  config.rope_scaling.low_freq_factor,
                  " ");
  absl::StrAppend(&collected_,
                  config.rope_scaling.high_freq_factor,
                  " ",
                  config.rope_scaling.original_max_position_embeddings,
                  " ",
                  config.tie_word_embeddings,
                  config.qkv_bias,
                  config.o_bias,
                  config.mlp_bias,
                  config.qk_norm,
                  " ");
  absl::StrAppend(&collected_,
                  static_cast<int>(config.dtype),
                  " ",
                  config.num_key_value_layers,
                  " ",
                  config.key_value_group_size,
                  "\n");
  for (const int32_t window : config.sliding_window) {
    absl::StrAppend(&collected_, window, " ");
  }
}

void Fingerprint::Add(std::string_view name, const TensorView& tensor) {
  absl::StrAppend(&collected_, "\n", std::string(name), " ", static_cast<int>(tensor.dtype));
  for (const int64_t extent : tensor.shape) {
    absl::StrAppend(&collected_, " ", extent);
  }
  absl::StrAppend(&collected_, " = ", SampleDigest(tensor.bytes));
}

void Fingerprint::Add(std::string_view name, uint64_t value) {
  absl::StrAppend(&collected_, "\n", std::string(name), " = ", value);
}

uint64_t Fingerprint::Digest() const { return XXH3_64bits(collected_.data(), collected_.size()); }

}  // namespace baton::checkpoint
