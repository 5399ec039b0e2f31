// A model on a back end with memory of its own.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_config.h"
#include "common/model/model.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops/op_table.h"
#include "tests/kernels/device_double/device_double.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/unit/model/model_harness.h"
#include "tests/unit/model/test_checkpoint.h"

namespace baton::model {
namespace {

using checkpoint::Architecture;
using checkpoint::Checkpoint;
using kernels::DType;
using kernels::GuardedMemory;

constexpr uint64_t kSeed = 20261122;

struct Family {
  const char* name;
  Architecture architecture;
  bool swiftkv;
};

class DeviceModelTest : public testing::TestWithParam<Family> {
 protected:
  DeviceModelTest()
      : checkpoint_(MakeTestCheckpoint(GetParam().swiftkv
                                           ? SmallSwiftKvConfig(GetParam().architecture, 7, 3, 2)
                                           : SmallConfig(GetParam().architecture, 4),
                                       kSeed)) {}

  // What a step gives: logits, and all that is in the pages.
  struct Outcome {
    std::vector<float> logits;
    std::vector<float> cached;
  };

  // Two prompts of odd lengths in chunks that share a step, then decode steps of both. With rows
  // enough that the CPU cuts them into tiles, which a device does not.
  std::vector<Outcome> Run(ModelHarness& harness) const {
    const int32_t vocab = checkpoint_->config().vocab_size;
    const std::vector<int32_t> first = RandomTokens(5, 601, vocab);
    const std::vector<int32_t> second = RandomTokens(6, 37, vocab);
    std::vector<Outcome> outcomes;
    const auto step = [&](const std::vector<StepPart>& parts) {
      outcomes.push_back({.logits = harness.Step(parts), .cached = harness.AllCached(0)});
    };
    step({{0, {first.begin(), first.begin() + 20}, {}, {}}});
    step({{0, {first.begin() + 20, first.end()}, {579, 580}, {580}}, {1, second, {36}, {36}}});
    for (int32_t token = 1; token <= 3; ++token) {
      step({{0, {token}, {0}, {0}}, {1, {token + 7}, {0}, {0}}});
    }
    return outcomes;
  }

  std::vector<Outcome> RunOn(const kernels::OpTable& ops,
                             kernels::MemorySpace& memory,
                             DType dtype) const {
    ModelHarness harness(
        *checkpoint_,
        ops,
        {.dtype = dtype, .max_sequences = 2, .max_tokens = 640, .memory = &memory});
    return Run(harness);
  }

  const std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_P(DeviceModelTest, GivesTheBitsOfTheHostWhereActivationsAreTheSame) {
  const auto want = RunOn(kernels::CpuOps(), kernels::HostMemory(), DType::kF32);
  const auto got = RunOn(kernels::DeviceDoubleOps(DType::kF32), GuardedMemory::Get(), DType::kF32);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].logits, want[i].logits) << "step " << i;
    EXPECT_EQ(got[i].cached, want[i].cached) << "step " << i;
  }
}

TEST_P(DeviceModelTest, ActivationsOfTwoBytesChangeLogitsByTheirRounding) {
  const auto want = RunOn(kernels::CpuOps(), kernels::HostMemory(), DType::kBF16);
  const auto got =
      RunOn(kernels::DeviceDoubleOps(DType::kBF16), GuardedMemory::Get(), DType::kBF16);
  for (size_t i = 1; i < want.size(); ++i) {
    float largest = 0;
    float difference = 0;
    for (size_t j = 0; j < want[i].logits.size(); ++j) {
      largest = std::max(largest, std::abs(want[i].logits[j]));
      difference = std::max(difference, std::abs(want[i].logits[j] - got[i].logits[j]));
    }
    EXPECT_GT(difference, 0) << "step " << i;
    EXPECT_LT(difference, 0.05f * largest) << "step " << i;
  }
}

TEST_P(DeviceModelTest, AStepUploadsItsArraysAtOnce) {
  ModelHarness harness(
      *checkpoint_, kernels::DeviceDoubleOps(DType::kF32), {.memory = &GuardedMemory::Get()});
  const std::vector<int32_t> tokens = RandomTokens(5, 30, checkpoint_->config().vocab_size);
  harness.Prefill(0, tokens, 30);
  const int64_t uploads = GuardedMemory::Get().uploads();
  const int64_t downloads = GuardedMemory::Get().downloads();
  harness.Step({{0, {3}, {0}, {0}}});
  EXPECT_EQ(GuardedMemory::Get().uploads(), uploads + 1);
  EXPECT_EQ(GuardedMemory::Get().downloads(), downloads + 1);  // logits
}

TEST_P(DeviceModelTest, HiddenStatesAreReportedFromTheDevice) {
  const std::vector<int32_t> tokens = RandomTokens(5, 30, checkpoint_->config().vocab_size);
  const auto reports = [&](const kernels::OpTable& ops, kernels::MemorySpace& memory) {
    std::vector<std::vector<float>> seen;
    ModelHarness harness(*checkpoint_, ops, {.memory = &memory});
    harness.on_hidden = [&](int32_t /*layer*/, std::span<const float> x, int64_t /*rows*/) {
      seen.emplace_back(x.begin(), x.end());
    };
    harness.Prefill(0, tokens, 30);
    return seen;
  };
  EXPECT_EQ(reports(kernels::DeviceDoubleOps(DType::kF32), GuardedMemory::Get()),
            reports(kernels::CpuOps(), kernels::HostMemory()));
}

TEST_P(DeviceModelTest, ADestroyedModelLeavesNoBlock) {
  ASSERT_EQ(GuardedMemory::Get().blocks(), 0);
  {
    const ModelHarness harness(
        *checkpoint_, kernels::DeviceDoubleOps(DType::kF32), {.memory = &GuardedMemory::Get()});
    EXPECT_GT(GuardedMemory::Get().blocks(), 0);
  }
  EXPECT_EQ(GuardedMemory::Get().blocks(), 0);
}

TEST_P(DeviceModelTest, MemoryThatIsMissingIsAStatus) {
  kernels::ThreadPool pool(1);
  kernels::Buffer workspace;
  const kernels::ExecContext exec = {
      .pool = &pool, .workspace = &workspace, .memory = &GuardedMemory::Get()};
  GuardedMemory::Get().FailNext();
  const auto model =
      Model::Load(*checkpoint_,
                  kernels::DeviceDoubleOps(DType::kF32),
                  exec,
                  {.max_step_rows = 64, .max_logit_rows = 8, .weight_dtype = DType::kF32});
  EXPECT_EQ(model.status().code(), absl::StatusCode::kResourceExhausted) << model.status();
  EXPECT_EQ(GuardedMemory::Get().blocks(), 0);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         DeviceModelTest,
                         testing::Values(Family{"Llama", Architecture::kLlama, false},
                                         Family{"LlamaSwiftKv", Architecture::kLlama, true},
                                         Family{"Qwen2SwiftKv", Architecture::kQwen2, true},
                                         Family{"Qwen3", Architecture::kQwen3, false}),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace baton::model
