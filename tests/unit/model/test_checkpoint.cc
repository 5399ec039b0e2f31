#include "tests/unit/model/test_checkpoint.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/convert.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/random_weights.h"
#include "common/checkpoint/tensor_view.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"

namespace baton::model {
namespace {

using checkpoint::ModelConfig;
using kernels::DType;

class TestCheckpoint : public checkpoint::Checkpoint {
 public:
  TestCheckpoint(ModelConfig config, uint64_t seed, Alias alias)
      : config_(std::move(config)), seed_(seed), alias_(std::move(alias)) {}

  const ModelConfig& config() const override { return config_; }
  const std::string& directory() const override { return directory_; }
  bool Has(std::string_view) const override { return true; }
  std::vector<std::string> TensorNames() const override { return {}; }
  absl::StatusOr<checkpoint::TensorView> View(std::string_view) const override {
    return absl::FailedPreconditionError("not stored");
  }
  absl::Status ReadPart(std::string_view name,
                        std::span<const int64_t> shape,
                        DType dtype,
                        int64_t first,
                        std::span<std::byte> target) const override {
    std::string source(name);
    if (alias_) {
      source = alias_(source);
    }
    // Norms vary around 1; "norm" in the name would make them exactly 1.
    const bool norm = source.find("norm") != std::string::npos;
    std::replace(source.begin(), source.end(), 'n', 'm');
    std::vector<float> floats(target.size() / kernels::DTypeBytes(dtype));
    checkpoint::FillRandomTensor(seed_, source, shape, first, floats);
    for (float& value : floats) {
      value = norm ? 1.0f + 10.0f * value : shape.size() == 1 ? 10.0f * value : value;
      value = kernels::BF16ToF32(kernels::F32ToBF16(value));
    }
    const checkpoint::TensorView values = {
        DType::kF32, {static_cast<int64_t>(floats.size())}, std::as_bytes(std::span(floats))};
    return checkpoint::ConvertTensor(values, dtype, target);
  }
  uint64_t fingerprint() const override { return seed_; }

 private:
  ModelConfig config_;
  uint64_t seed_;
  Alias alias_;
  std::string directory_ = "test";
};

}  // namespace

std::unique_ptr<checkpoint::Checkpoint> MakeTestCheckpoint(const ModelConfig& config,
                                                           uint64_t seed,
                                                           Alias alias) {
  return std::make_unique<TestCheckpoint>(config, seed, std::move(alias));
}

ModelConfig SmallConfig(checkpoint::Architecture architecture, int32_t num_layers) {
  ModelConfig config;
  config.architecture = architecture;
  config.hidden_size = 48;
  config.num_layers = num_layers;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 40;
  config.vocab_size = 61;
  config.max_position_embeddings = 4096;
  config.qkv_bias = architecture == checkpoint::Architecture::kQwen2;
  config.qk_norm = architecture == checkpoint::Architecture::kQwen3;
  const int32_t window = architecture == checkpoint::Architecture::kMistral ? 9 : 0;
  config.sliding_window.assign(static_cast<size_t>(num_layers), window);
  config.num_key_value_layers = num_layers;
  return config;
}

ModelConfig SmallSwiftKvConfig(checkpoint::Architecture architecture,
                               int32_t num_layers,
                               int32_t full_layers,
                               int32_t group_size) {
  ModelConfig config = SmallConfig(architecture, num_layers);
  config.num_key_value_layers = full_layers;
  config.key_value_group_size = group_size;
  return config;
}

}  // namespace baton::model
