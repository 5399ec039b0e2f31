// Loading: which tensors are needed, and what is said when one is missing or wrong.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_view.h"
#include "common/model/model.h"
#include "common/model/required_tensors.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"
#include "kernels/reference/reference_ops.h"
#include "tests/unit/model/model_harness.h"
#include "tests/unit/model/test_checkpoint.h"

namespace baton::model {
namespace {

using checkpoint::Architecture;
using checkpoint::ModelConfig;
using testing::HasSubstr;

// Notes what is read; can lack one tensor, and has none with a dimension above kLargest.
class WatchedCheckpoint : public checkpoint::Checkpoint {
 public:
  static constexpr int64_t kLargest = 1 << 20;

  WatchedCheckpoint(const ModelConfig& config, std::string missing)
      : inner_(MakeTestCheckpoint(config, 1)), missing_(std::move(missing)) {}

  const ModelConfig& config() const override { return inner_->config(); }
  const std::string& directory() const override { return inner_->directory(); }
  bool Has(std::string_view name) const override { return name != missing_; }
  std::vector<std::string> TensorNames() const override { return {}; }
  absl::StatusOr<checkpoint::TensorView> View(std::string_view name) const override {
    return inner_->View(name);
  }
  absl::Status ReadPart(std::string_view name,
                        std::span<const int64_t> shape,
                        kernels::DType dtype,
                        int64_t first,
                        std::span<std::byte> target) const override {
    if (name == missing_) {
      return absl::NotFoundError("tensor `" + std::string(name) + "` is missing");
    }
    if (*std::max_element(shape.begin(), shape.end()) > kLargest) {
      return absl::InvalidArgumentError("tensor `" + std::string(name) + "` is smaller");
    }
    if (first == 0 && !target.empty()) {
      read_.push_back({std::string(name), {shape.begin(), shape.end()}});
    }
    return inner_->ReadPart(name, shape, dtype, first, target);
  }
  uint64_t fingerprint() const override { return 1; }
  const std::vector<RequiredTensor>& read() const { return read_; }

 private:
  std::unique_ptr<checkpoint::Checkpoint> inner_;
  std::string missing_;
  mutable std::vector<RequiredTensor> read_;
};

absl::Status Load(const checkpoint::Checkpoint& checkpoint) {
  kernels::ThreadPool pool(1);
  kernels::Buffer workspace;
  return Model::Load(checkpoint, kernels::ReferenceOps(), {&pool, &workspace}, {}).status();
}

std::vector<ModelConfig> Configs() {
  std::vector<ModelConfig> configs;
  for (const Architecture architecture :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kMistral}) {
    configs.push_back(SmallConfig(architecture, 2));
    configs.push_back(SmallSwiftKvConfig(architecture, 6, 2, 2));
  }
  configs.front().tie_word_embeddings = true;
  configs.front().o_bias = configs.front().mlp_bias = true;
  return configs;
}

TEST(LoadTest, ReadsExactlyTheRequiredTensors) {
  for (const ModelConfig& config : Configs()) {
    const WatchedCheckpoint checkpoint(config, "");
    ASSERT_TRUE(Load(checkpoint).ok());
    std::vector<RequiredTensor> expected = RequiredTensors(config);
    std::vector<RequiredTensor> read = checkpoint.read();
    const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
    std::sort(expected.begin(), expected.end(), by_name);
    std::sort(read.begin(), read.end(), by_name);
    EXPECT_EQ(read, expected);
  }
}

TEST(LoadTest, OriginalProjectionsOfUpperLayersAreNotNeeded) {
  for (const RequiredTensor& tensor :
       RequiredTensors(SmallSwiftKvConfig(Architecture::kLlama, 4, 2, 1))) {
    EXPECT_THAT(tensor.name, testing::Not(HasSubstr("layers.3.self_attn.k_proj.")));
    EXPECT_THAT(tensor.name, testing::Not(HasSubstr("inv_freq")));
  }
}

TEST(LoadTest, EveryMissingTensorIsNamed) {
  const ModelConfig config = SmallSwiftKvConfig(Architecture::kQwen3, 3, 1, 1);
  for (const RequiredTensor& tensor : RequiredTensors(config)) {
    const absl::Status status = Load(WatchedCheckpoint(config, tensor.name));
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << tensor.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(tensor.name));
  }
}

TEST(LoadTest, AShapeThatNoMemoryHasRoomForIsRefusedByTheTensorsName) {
  ModelConfig config = SmallConfig(Architecture::kLlama, 1);
  config.intermediate_size = 1 << 30;
  const absl::Status status = Load(WatchedCheckpoint(config, ""));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("gate_proj.weight"));
}

TEST(LoadTest, FingerprintDependsOnTheWeightDtype) {
  const auto checkpoint = MakeTestCheckpoint(SmallConfig(Architecture::kLlama, 1), 1);
  ModelHarness f32(*checkpoint, kernels::ReferenceOps(), {.dtype = kernels::DType::kF32});
  ModelHarness again(*checkpoint, kernels::ReferenceOps(), {.dtype = kernels::DType::kF32});
  ModelHarness bf16(*checkpoint, kernels::ReferenceOps(), {.dtype = kernels::DType::kBF16});
  EXPECT_EQ(f32.model().fingerprint(), again.model().fingerprint());
  EXPECT_NE(f32.model().fingerprint(), bf16.model().fingerprint());
}

TEST(LoadTest, OptionsAreChecked) {
  const auto checkpoint = MakeTestCheckpoint(SmallConfig(Architecture::kLlama, 1), 1);
  kernels::ThreadPool pool(1);
  kernels::Buffer workspace;
  for (const ModelOptions& options : {ModelOptions{.max_step_rows = 0},
                                      ModelOptions{.max_logit_rows = 0},
                                      ModelOptions{.weight_dtype = kernels::DType::kF16}}) {
    EXPECT_EQ(Model::Load(*checkpoint, kernels::ReferenceOps(), {&pool, &workspace}, options)
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton::model
