// A model on the device whose sequence is in KV format `diffkv`: the prompt is scored, encoded and
// decoded there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"

#include "common/checkpoint/checkpoint.h"
#include "common/engine/model_codecs.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/packed_step_kv.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_session.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "tests/unit/model/model_harness.h"

namespace baton::model {
namespace {

// Rounding activations to bf16 between ops, which the host does not, moves logits by this much of
// the largest, in the mean over steps; and by this much in a step, for a token that is near a
// threshold gets another precision.
constexpr double kMeanTolerance = 0.04;
constexpr double kStepTolerance = 0.2;
constexpr int32_t kPrompt = 601;
constexpr int32_t kSteps = 70;

// A model with one sequence, on the host or on the device.
class DiffKvRun {
 public:
  DiffKvRun(const checkpoint::Checkpoint& checkpoint,
            const kernels::OpTable& ops,
            kernels::MemorySpace& memory,
            kernels::cuda::DeviceQueue* queue,
            const std::string& policy)
      : ops_(ops),
        exec_({.pool = &threads_, .workspace = &workspace_, .queue = queue, .memory = &memory}) {
    model_ = Model::Load(checkpoint,
                         ops,
                         exec_,
                         {.max_step_rows = kPrompt,
                          .max_logit_rows = kPrompt,
                          .weight_dtype = kernels::DType::kBF16})
                 .value();
    const KvShape shape = model_->kv_shape();
    pages_.layout = {.page_tokens = 16,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim,
                     .dtype = kernels::DType::kBF16};
    stride_ = pages_.layout.pages_for(kPrompt);
    table_.resize(static_cast<size_t>(shape.layers) * static_cast<size_t>(stride_));
    std::iota(table_.rbegin(), table_.rend(), 0);
    page_memory_ = memory.Allocate(table_.size() * pages_.layout.stride_bytes()).value();
    pages_.base = page_memory_.data();
    codecs_ = kv::CodecSet::Create(
                  engine::MakeCodecContext(*model_, exec_, ops, pages_.layout.dtype, 4096),
                  {.diffkv_bytes = 16 << 20})
                  .value();
    const kv::KvFormatPolicy format = *(*kv::ParseKvPolicy(policy)).format();
    sequence_ = codecs_->Find(format.id())->Allocate(format.resident, kPrompt, kSteps);
  }

  // The tokens from position `begin` on; logits of the last one if `completes` or it is generated.
  std::vector<float> Step(std::span<const int32_t> tokens, int32_t begin, bool prefill) {
    const auto count = static_cast<int32_t>(tokens.size());
    const bool completes = prefill && begin + count == kPrompt;
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), begin);
    std::vector<int32_t> survivors;
    for (int32_t row = 0; row < count; ++row) {
      if (!prefill || begin + row >= sequence_->first_observed()) survivors.push_back(row);
    }
    std::vector<int32_t> logit_rows;
    if (completes || !prefill) logit_rows.push_back(count - 1);
    const SequenceSlice slice = {0, count};
    kv::StepSequenceKv step;
    step.encoded = sequence_.get();
    step.prefill = prefill;
    step.completes_prompt = completes;
    if (prefill) {
      step.dense = {.data = table_.data(), .stride = stride_, .layers = model_->kv_shape().layers};
    }
    kv::PackedStepKv kv(ops_, exec_, pages_, {step});
    ForwardBatch batch;
    batch.token_ids = tokens;
    batch.positions = positions;
    batch.sequences = {&slice, 1};
    batch.survivors = survivors;
    batch.logit_rows = logit_rows;
    batch.kv = &kv;
    std::vector<float> logits(logit_rows.size() * static_cast<size_t>(model_->config().vocab_size));
    const absl::Status status = model_->Forward(batch, logits);
    EXPECT_TRUE(status.ok()) << status;
    return logits;
  }

  // A prompt in chunks, then tokens that do not depend on the logits. Logits of all that has some.
  std::vector<std::vector<float>> Run(int32_t chunk) {
    const std::vector<int32_t> tokens =
        RandomTokens(5, kPrompt + kSteps, model_->config().vocab_size);
    const std::span<const int32_t> all(tokens);
    std::vector<std::vector<float>> logits;
    for (int32_t begin = 0; begin < kPrompt; begin += chunk) {
      const auto count = static_cast<size_t>(std::min(chunk, kPrompt - begin));
      logits.push_back(Step(all.subspan(static_cast<size_t>(begin), count), begin, true));
    }
    sequence_->Trim();
    for (int32_t position = kPrompt; position < kPrompt + kSteps; ++position) {
      logits.push_back(Step(all.subspan(static_cast<size_t>(position), 1), position, false));
    }
    return logits;
  }

  const kv::EncodedKv& sequence() const { return *sequence_; }

 private:
  const kernels::OpTable& ops_;
  kernels::ThreadPool threads_{2};
  kernels::Buffer workspace_;
  const kernels::ExecContext exec_;
  std::unique_ptr<Model> model_;
  kernels::DensePages pages_;
  int32_t stride_ = 0;
  std::vector<int32_t> table_;
  kernels::Memory page_memory_;
  std::unique_ptr<kv::CodecSet> codecs_;
  std::unique_ptr<kv::EncodedKv> sequence_;
};

class DeviceDiffKvModelTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
};

TEST_P(DeviceDiffKvModelTest, LogitsAreThoseOfTheHost) {
  if (kernels::CudaOps() == nullptr) {
    GTEST_SKIP() << "no CUDA device";
  }
  auto session = kernels::cuda::OpenSession(size_t{256} << 20);
  ASSERT_TRUE(session.ok()) << session.status();
  const auto checkpoint = checkpoint::Checkpoint::Open(
      BATON_SOURCE_DIR "/tests/data/models/" + std::get<0>(GetParam()), {});
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::string& policy = std::get<1>(GetParam());
  DiffKvRun host(**checkpoint, kernels::CpuOps(), kernels::HostMemory(), nullptr, policy);
  DiffKvRun device(
      **checkpoint, *kernels::CudaOps(), (*session)->memory(), &(*session)->queue(), policy);
  const auto want = host.Run(/*chunk=*/256);
  const auto got = device.Run(/*chunk=*/256);
  double sum = 0.0;
  for (size_t step = 0; step < want.size(); ++step) {
    float largest = 0;
    float difference = 0;
    for (size_t i = 0; i < want[step].size(); ++i) {
      largest = std::max(largest, std::abs(want[step][i]));
      difference = std::max(difference, std::abs(want[step][i] - got[step][i]));
    }
    const double share = largest > 0 ? double{difference} / double{largest} : 0.0;
    EXPECT_LE(share, kStepTolerance) << "step " << step;
    sum += share;
  }
  const double mean = sum / kSteps;
  RecordProperty("mean_difference", std::to_string(mean));
  EXPECT_LE(mean, kMeanTolerance);
  const auto resident = static_cast<double>(host.sequence().ResidentBytes());
  EXPECT_NEAR(static_cast<double>(device.sequence().ResidentBytes()), resident, 0.1 * resident);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    DeviceDiffKvModelTest,
    testing::Combine(testing::Values("tiny-llama-needle", "tiny-llama-needle-swiftkv-l6-across2"),
                     testing::Values("diffkv", "diffkv:ah=2,al=0.5,policy=paper,w=16,every=4")),
    [](const auto& instance) { return "Case" + std::to_string(instance.index); });

}  // namespace
}  // namespace baton::model
