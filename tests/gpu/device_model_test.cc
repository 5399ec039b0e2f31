// A model on the device: weights, activations and pages in its memory, every op of a step on its
// queue.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "kernels/core/dtype.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_session.h"
#include "tests/unit/model/model_harness.h"

namespace baton::model {
namespace {

// Rounding activations to bf16 between ops, which the host does not, moves logits by up to this
// much of the largest.
constexpr float kTolerance = 0.04f;

class DeviceModelTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (kernels::CudaOps() == nullptr) {
      GTEST_SKIP() << "no CUDA device";
    }
    auto session = kernels::cuda::OpenSession({.workspace_bytes = size_t{256} << 20});
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    auto opened =
        checkpoint::Checkpoint::Open(BATON_SOURCE_DIR "/tests/data/models/" + GetParam(), {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = *std::move(opened);
  }

  HarnessOptions Options() const {
    return {.dtype = kernels::DType::kBF16, .max_sequences = 2, .max_tokens = 1024};
  }

  HarnessOptions DeviceOptions() const {
    HarnessOptions options = Options();
    options.memory = &session_->memory();
    options.queue = &session_->queue();
    return options;
  }

  // Two prompts of odd lengths in chunks that share a step, then decode steps of both.
  std::vector<std::vector<float>> Run(ModelHarness& harness) const {
    const int32_t vocab = checkpoint_->config().vocab_size;
    const std::vector<int32_t> first = RandomTokens(5, 601, vocab);
    const std::vector<int32_t> second = RandomTokens(6, 37, vocab);
    std::vector<std::vector<float>> logits;
    logits.push_back(harness.Step({{0, {first.begin(), first.begin() + 20}, {19}, {19}}}));
    logits.push_back(harness.Step(
        {{0, {first.begin() + 20, first.end()}, {579, 580}, {580}}, {1, second, {36}, {36}}}));
    for (int32_t token = 1; token <= 4; ++token) {
      logits.push_back(harness.Step({{0, {token}, {0}, {0}}, {1, {token + 7}, {0}, {0}}}));
    }
    return logits;
  }

  std::unique_ptr<kernels::cuda::Session> session_;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
};

TEST_P(DeviceModelTest, LogitsAreThoseOfTheHost) {
  ModelHarness on_host(*checkpoint_, kernels::CpuOps(), Options());
  ModelHarness on_device(*checkpoint_, *kernels::CudaOps(), DeviceOptions());
  const auto want = Run(on_host);
  const auto got = Run(on_device);
  for (size_t step = 0; step < want.size(); ++step) {
    float largest = 0;
    float difference = 0;
    for (size_t i = 0; i < want[step].size(); ++i) {
      largest = std::max(largest, std::abs(want[step][i]));
      difference = std::max(difference, std::abs(want[step][i] - got[step][i]));
    }
    RecordProperty("difference_of_step_" + std::to_string(step),
                   std::to_string(difference / largest));
    EXPECT_LT(difference, kTolerance * largest) << "step " << step;
  }
}

TEST_P(DeviceModelTest, AChunkedPromptGivesTheLogitsOfAWholeOne) {
  const std::vector<int32_t> tokens = RandomTokens(7, 700, checkpoint_->config().vocab_size);
  ModelHarness whole(*checkpoint_, *kernels::CudaOps(), DeviceOptions());
  const std::vector<float> want = whole.Prefill(0, tokens, 700);
  const float largest =
      std::abs(*std::ranges::max_element(want, {}, [](float value) { return std::abs(value); }));
  for (const int32_t chunk : {37, 256}) {
    ModelHarness chunked(*checkpoint_, *kernels::CudaOps(), DeviceOptions());
    const std::vector<float> got = chunked.Prefill(0, tokens, chunk);
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], kTolerance * largest) << "chunk " << chunk << " logit " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         DeviceModelTest,
                         testing::Values("tiny-llama-needle",
                                         "tiny-llama-needle-swiftkv-l6-across2"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace baton::model
